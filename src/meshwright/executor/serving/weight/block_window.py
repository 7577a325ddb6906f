"""BlockWindow: blocks of weights that a thread reads ahead of their use, round after round; only a window of them is here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import cycle
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import torch

from meshwright.executor.serving.weight.stage_weights import StageWeights
from meshwright.specs.error import ExecutionError

Read = Callable[[str], StageWeights]
Result = TypeVar("Result")


class _Come(NamedTuple):
    """A block that is here, or what went wrong with it."""

    name: str
    weights: StageWeights | None
    error: BaseException | None = None


class BlockWindow:
    """Args:
        read: reads one block, in the thread.
        order: the blocks of a round, in the order of their use.
        window: blocks that are here at once, those that are being read among them.

    ``resident_bytes``, ``peak_bytes``: of blocks that are here, and the most of that so far. ``num_waits``: blocks that were
    wanted before they had come.
    """

    def __init__(self, read: Read, order: Sequence[str], window: int) -> None:
        self._read, self._order = read, tuple(order)
        self.resident_bytes = self.peak_bytes = self.num_waits = 0
        self._count = threading.Lock()
        self._places, self._come = threading.Semaphore(window), SimpleQueue[_Come]()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def use(self, name: str, compute: Callable[[StageWeights], Result]) -> Result:
        """What is computed with a block, the next one of the round. Behind it its memory is free, and another one may come.

        Raises ExecutionError where the block could not be read. Then, and where computing fails, the window is over: the next
        step would begin in the middle of a round.
        """
        if self._is_closed:
            raise ExecutionError("the window of weights is closed", next="make a new runner")
        self.num_waits += self._come.empty()
        found = self._come.get()
        try:
            if found.weights is None or found.name != name:
                raise ExecutionError(
                    f"block {name} of the weights did not come: {found.error or f'{found.name} did'}"
                )
            result, num_bytes = compute(found.weights), found.weights.num_bytes
        except BaseException:
            self.close()
            raise
        del found  # the last reference: the memory is free before another block may come
        with self._count:
            self.resident_bytes -= num_bytes
        self._places.release()
        return result

    def close(self) -> None:
        """End the thread, and let go of what has come."""
        self._is_closed = True
        self._places.release()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        while not self._come.empty():
            self._come.get()

    def _run(self) -> None:
        with torch.inference_mode():  # of this thread
            for name in cycle(self._order):
                self._places.acquire()
                if self._is_closed:
                    return
                try:
                    weights = self._read(name)
                except BaseException as error:  # noqa: B036 - whoever waits for the block is told
                    self._come.put(_Come(name, None, error))
                    return
                with self._count:
                    self.resident_bytes += weights.num_bytes
                    self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
                self._come.put(_Come(name, weights))
                del weights
