"""The interpreter: an in-order host that walks the list of its rank, and the only loop over microbatches there is."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.rank_list import RankList, Step
from meshwright.executor.rank.seconds_by_name import SecondsByName, Spent
from meshwright.executor.rank.stream import Issued, Stream, Times, clock
from meshwright.executor.rank.value_store import ValueStore, fetch, put_all
from meshwright.executor.rank.watchdog import Position

NOTHING = -1
# Times of the last iterations are kept: as many as have this many rows together, at least LEAST_KEPT. A row costs about
# 100 bytes.
KEPT_ROWS, LEAST_KEPT = 1_000_000, 200


class RowError(Exception):
    """A handler failed: which row, in which iteration; the cause is chained."""

    def __init__(self, step: Step, iteration: int) -> None:
        super().__init__(f"{step.row.text}, iteration {iteration}")
        self.step, self.iteration = step, iteration


class Interpreter:
    """Runs the list of one rank again and again.

    At each row it waits until the versions it reads are complete, its ring slot is free and its `after` are complete
    (`Step.waits`: only asynchronous rows can be incomplete), then runs a COMPUTE itself and hands anything else to its
    stream. ``position`` publishes where it is; ``watch`` lets asynchronous rows run inside a context.
    """

    def __init__(self, ranked: RankList, store: ValueStore, context: Context, position: Position) -> None:
        self.ranked, self.store, self.context, self.position = ranked, store, context, position
        self.times: deque[Times] = deque(maxlen=max(LEAST_KEPT, KEPT_ROWS // max(1, len(ranked.steps))))
        self.num_done = 0  # iterations begun, all but the last of them done
        self.waited_s = [0.0] * len(ranked.steps)  # of this iteration, for each row that the host waited for
        self._taken = [0] * len(ranked.steps)  # completions that the host has seen, by row
        self._done: list[SimpleQueue[BaseException | None]] = [SimpleQueue() for _ in ranked.steps]
        self._failure: BaseException | None = None
        self._seconds = SecondsByName(ranked)
        self._streams = [Stream(name, context, self._done, self._fail) for name in ranked.streams]
        self._batches: list[list[Issued]] = [[] for _ in ranked.streams]

    def watch(self, watching: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """Let the handlers of asynchronous rows run inside `watching()`, in the threads of their streams."""
        for stream in self._streams:
            stream.watching = watching

    def run_iteration(self) -> None:
        """Walk the list once. Exchanges that nobody waited for may still be under way afterwards.

        Raises:
            RowError: a handler failed, here or on a stream.
        """
        iteration = self.num_done
        self.num_done += 1
        times = Times(len(self.ranked.steps))
        self.times.append(times)
        self.waited_s[:] = [0.0] * len(self.waited_s)
        lines = self.store.lines(iteration)
        context, position = self.context, self.position
        for step in self.ranked.steps:
            position.set(iteration, step.row.number)
            if step.waits:
                self._wait(step, iteration)
            inputs = _inputs(lines, step.reads)
            if step.stream == NOTHING:
                _compute(context, step, inputs, lines[0], times, iteration)
            else:
                self._issue(Issued(step, inputs, lines[0], times, iteration))
            del inputs  # what the row held must not live until the next one
        if self._failure is not None:
            raise self._failure

    def drain(self) -> None:
        """Wait for all streams to finish what was issued."""
        for stream in self._streams:
            stream.drain()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait for all streams to finish what was issued, and end their threads."""
        for stream in self._streams:
            stream.close()
        if self._failure is not None:
            raise self._failure

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Posted, start and end of the last iterations, ``[iterations, rows of this rank]``."""
        num = len(self.ranked.steps)
        return {
            name: np.array([getattr(times, name) for times in self.times], dtype=np.float64).reshape(
                len(self.times), num
            )
            for name in ("posted", "start", "end")
        }

    def spent(self) -> Spent:
        """Where the host's seconds of the last iteration went, by name."""
        return self._seconds.of(self.times[-1], self.waited_s)

    def _wait(self, step: Step, iteration: int) -> None:
        taken = self._taken
        for other, lag in step.waits:
            while taken[other] <= iteration - lag:
                self.position.waiting(other)
                begin_s = clock()
                failure = self._done[other].get()
                self.waited_s[other] += clock() - begin_s
                if failure is not None:
                    raise failure
                taken[other] += 1

    def _issue(self, issued: Issued) -> None:
        stream = issued.step.stream
        batch = self._batches[stream]
        batch.append(issued)
        if issued.step.closes_batch:
            self._batches[stream] = []
            self._streams[stream].issue(batch)

    def _fail(self, error: BaseException, step: Step, iteration: int) -> None:
        """Called by a stream: wake the host wherever it waits."""
        failure = RowError(step, iteration)
        failure.__cause__ = error
        self._failure = failure
        for queue in self._done:
            queue.put(failure)


def _inputs(lines: list[list[Any]], reads: tuple[Any, ...]) -> list[Any]:
    """One entry a read pattern: a value, several, or None."""
    inputs: list[Any] = []
    for read in reads:
        if read is None:
            inputs.append(None)
        elif read and type(read[0]) is int:
            inputs.append(fetch(lines, read))
        else:
            inputs.append(tuple([fetch(lines, one) for one in read]))
    return inputs


def _compute(
    context: Context, step: Step, inputs: list[Any], line: list[Any], times: Times, iteration: int
) -> None:
    """Run a COMPUTE on the host."""
    number = step.row.number
    times.posted[number] = times.start[number] = clock()
    try:
        outputs = step.handler(context, step.row, inputs)
        context.synchronise()
        put_all(line, step.writes, outputs, step.row.text)
    except Exception as error:
        raise RowError(step, iteration) from error
    times.end[number] = clock()
