"""A stream as a thread: it posts what the host issued, in order, and waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Pending
from meshwright.executor.rank.stream.issued import Issued

DRAIN_CHECK_S = 0.5  # how often a waiting host looks whether the stream's thread has failed


class StreamThread:
    """One stream of a rank. Failures go to ``fail(error, issued)``, once, and the thread ends. Handlers run inside
    ``watching()``, a context for the thread that they run in."""

    def __init__(
        self,
        name: str,
        context: Context,
        done: Sequence[SimpleQueue[BaseException | None]],
        fail: Callable[[BaseException, Issued], None],
    ) -> None:
        self.name = name
        self.watching: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._context, self._done, self._fail = context, done, fail
        self._queue: SimpleQueue[list[Issued] | SimpleQueue[None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def issue(self, batch: list[Issued]) -> None:
        """Hand over rows that are posted together; most batches have one row."""
        self._queue.put(batch)

    def drain(self) -> None:
        """Wait until everything issued has ended."""
        reached: SimpleQueue[None] = SimpleQueue()
        self._queue.put(reached)
        while self._thread.is_alive():
            try:
                return reached.get(timeout=DRAIN_CHECK_S)
            except Empty:
                continue

    def close(self) -> None:
        """Wait until everything issued has ended, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = self._queue.get()
            if batch is None:
                return
            if isinstance(batch, SimpleQueue):
                batch.put(None)
                continue
            current = batch[0]
            try:
                if len(batch) == 1:
                    self._finish(current, self._post(current))
                    self._signal(current)
                else:
                    self._run_batch(batch)
            except BaseException as error:  # noqa: B036 - the job ends, with this as its reason
                self._fail(error, current)
                return
            del batch, current  # while waiting for the next, hold nothing of the last

    def _post(self, issued: Issued) -> Any:
        with self.watching():
            return issued.post(self._context)

    def _finish(self, issued: Issued, result: Sequence[Any]) -> None:
        outputs = result
        if type(result) is Pending:
            with self.watching():
                outputs = result.wait()
        issued.finish(outputs)

    def _signal(self, issued: Issued) -> None:
        """Say that a row has ended, when nothing here holds what it read any more: its readers may count on that memory."""
        if issued.step.signals:
            self._done[issued.step.row.number].put(None)

    def _run_batch(self, batch: list[Issued]) -> None:
        """Post all, then wait for each by itself: a reader waits for its member only."""
        posted: dict[int, Any] = {place: self._post(issued) for place, issued in enumerate(batch)}
        errors: list[BaseException] = []

        def finish(issued: Issued, place: int) -> None:
            try:
                self._finish(issued, posted.pop(place))
                self._signal(issued)
            except BaseException as error:  # noqa: B036 - raised again below, in the stream's thread
                errors.append(error)

        threads = [
            threading.Thread(target=finish, args=(issued, place), daemon=True)
            for place, issued in enumerate(batch[1:], 1)
        ]
        for thread in threads:
            thread.start()
        finish(batch[0], 0)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
