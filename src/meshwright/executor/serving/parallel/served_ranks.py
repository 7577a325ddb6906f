"""ServedRanks: the processes of a served model as their parent sees them.

Commands go to all of them in one order, and whoever waits for one sleeps until all have done it, or one has failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from meshwright.executor.team.worker_process import Report, WorkerProcess, close_all
from meshwright.specs.error import ExecutionError

RANK_MODULE = "meshwright.executor.serving.parallel.rank"
KILLED_S = 0.2  # after an error the kernel tells within this which process a signal has ended
NOBODY = -1  # in a report: the listener is to end


class ServedRanks:
    """``done``: the last command that each rank has done; ``peak_weight_bytes``: of weights that it had at once until then;
    ``told_rows``: what it last told of its experts (`SlotRows`, as plain lists);
    ``on_done``: is told of every command that a rank has done, (rank, number), in the order of the reports.

    When a rank fails or dies the others are ended, as they may wait for it; every call then raises the same error.
    """

    def __init__(self, num_ranks: int, folder: Path) -> None:
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._changed = threading.Condition()
        self._failure: ExecutionError | None = None
        self._number = 0
        self.done, self.peak_weight_bytes = [0] * num_ranks, [0] * num_ranks
        self.told_rows: list[list[Any]] = [[] for _ in range(num_ranks)]
        self.on_done: Callable[[int, int], None] = lambda rank, number: None
        self._wakes: list[tuple[int, Callable[[], None]]] = []
        self._workers: list[WorkerProcess] = []
        try:
            for rank in range(num_ranks):
                self._workers.append(WorkerProcess(rank, folder, self._reports, RANK_MODULE))
        except BaseException:
            close_all(self._workers, at_once=True)
            raise
        self._listener = threading.Thread(target=self._listen, name="served ranks", daemon=True)
        self._listener.start()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of those that run."""
        return tuple(worker.process.pid for worker in self._workers if worker.process.poll() is None)

    def send(self, **fields: Any) -> int:
        """Tell all ranks what to do, behind what they were told before. Returns its number, by which to wait for it."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._number += 1
            for rank, worker in enumerate(self._workers):
                worker.send(rank=rank, number=self._number, **fields)
            return self._number

    def wait(self, number: int, timeout_s: float) -> None:
        """Until all ranks have done it. Raises ExecutionError with the rank that failed, or has said nothing for so long."""
        with self._changed:
            is_over = self._changed.wait_for(lambda: self._is_over(number), timeout_s)
            late = self.done.index(min(self.done))
        if not is_over:
            self._fail(late, f"has said nothing for {timeout_s:g} s")
        if self._failure is not None:
            raise self._failure

    def have_done(self, number: int, wake: Callable[[], None]) -> bool:
        """Have all done it, or has one failed? Otherwise `wake` is called when that is so."""
        with self._changed:
            is_over = self._is_over(number)
            if not is_over:
                self._wakes.append((number, wake))
            return is_over

    def close(self, at_once: bool) -> None:
        """End all. Calls that come later are refused."""
        self._reports.put((NOBODY, {}))
        self._listener.join()
        self._over(ExecutionError("the runner is closed", next="make a new one"), at_once)

    def _listen(self) -> None:
        """In a thread of its own: note what ranks have done, until one fails."""
        while True:
            rank, report = self._reports.get()
            if rank == NOBODY:
                return
            if "error" in report or "closed" in report:
                killed = self._killed()
                if killed is None and "error" in report:
                    return self._fail(rank, f"failed: {report['error']}")
                dead = rank if killed is None else killed
                return self._fail(dead, f"has ended\n{self._workers[dead].last_words()}".strip())
            if "done" in report:
                with self._changed:
                    self.done[rank] = report["done"]
                    self.peak_weight_bytes[rank] = report.get("peak_weight_bytes", 0)
                    self.told_rows[rank] = report.get("slot_rows", self.told_rows[rank])
                    self.on_done(rank, report["done"])
                    self._tell()

    def _killed(self) -> int | None:
        """The rank that a signal has ended: its peers may say first that they cannot reach it."""
        end_s = time.monotonic() + KILLED_S
        while time.monotonic() < end_s:
            for rank, worker in enumerate(self._workers):
                if (worker.process.poll() or 0) < 0:
                    return rank
            time.sleep(KILLED_S / 10)
        return None

    def _fail(self, rank: int, what: str) -> None:
        """End the others; what all calls raise from now on."""
        why = ExecutionError(
            f"rank {rank} of the served model {what}",
            next="make a new runner; requests that were under way have to be computed again",
        )
        self._over(why, at_once=True)

    def _over(self, why: ExecutionError, at_once: bool) -> None:
        with self._changed:
            self._failure = self._failure or why
        close_all(self._workers, at_once)
        with self._changed:
            self._tell()

    def _is_over(self, number: int) -> bool:
        return self._failure is not None or min(self.done) >= number

    def _tell(self) -> None:
        """Whoever waits looks again."""
        self._changed.notify_all()
        due = [wake for number, wake in self._wakes if self._is_over(number)]
        self._wakes = [each for each in self._wakes if not self._is_over(each[0])]
        for wake in due:
            wake()
