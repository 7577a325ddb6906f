"""A thread that computes steps in the order in which they are given, one right behind the other.

Between two steps nobody computes, and code is cold, as the model's weights have gone through all caches: there is as little
of it as can be.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from meshwright.serving.engine.running_step import RunningStep

Compute = Callable[[RunningStep], None]


class StepThread:
    """It ends when it is closed, or when nobody has it any more."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[RunningStep, Compute] | None] = SimpleQueue()
        self._computed: SimpleQueue[RunningStep] = SimpleQueue()
        self._waiting: deque[Callable[[], None]] = deque()
        # What waits for steps holds no engine: one that is forgotten without being closed goes, and its thread with it.
        queues = (self._given, self._computed, self._waiting)
        self._thread = threading.Thread(target=_run, args=queues, name="engine", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._given.put, None)

    def give(self, step: RunningStep, compute: Compute) -> None:
        """Call `compute` for it when that was done for all given before; what it raises, whoever takes the step gets."""
        self._given.put((step, compute))

    def take(self) -> RunningStep:
        """Wait for the one that was given first. Raises what it raised."""
        step = self._computed.get()
        if step.error is not None:
            raise step.error
        return step

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Need nobody wait for it? Otherwise `wake` is called when that is so."""
        self._waiting.append(wake)  # before the look: a step that ends behind it finds this
        return not self._computed.empty()

    def close(self) -> None:
        """Wait for the one that runs; the others are not computed."""
        try:
            while True:
                self._given.get_nowait()
        except Empty:
            self._given.put(None)
        self._thread.join()


def _run(
    given: SimpleQueue[tuple[RunningStep, Compute] | None],
    computed: SimpleQueue[RunningStep],
    waiting: deque[Callable[[], None]],
) -> None:
    while (item := given.get()) is not None:
        step, compute = item
        try:
            compute(step)
        except BaseException as error:
            step.error = error
        computed.put(step)
        while waiting:
            waiting.popleft()()
        del item, step, compute
