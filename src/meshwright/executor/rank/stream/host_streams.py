"""HostStreams: the streams of a rank whose host runs computes itself: a thread each, and what the host runs in its place.

A row that a thread runs and the next one waits for costs two switches of threads, 50 to 60 us. Where nothing can overlap
with it the host runs it itself (`Step.runs_inline`, which `rows_run_inline` decides before the run), in about 4 us.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Pending
from meshwright.executor.rank.rank_list import RankList, Step
from meshwright.executor.rank.stream.issued import Issued, RowError
from meshwright.executor.rank.stream.row_times import Times, clock
from meshwright.executor.rank.stream.stream_thread import StreamThread
from meshwright.executor.rank.watchdog import Position

NO_STREAM = -1


class HostStreams:
    """Runs rows in the order in which the host reaches them.

    ``waited_s``: seconds of this iteration that the host waited for each row.
    """

    def __init__(self, ranked: RankList, context: Context, position: Position) -> None:
        self.waited_s = [0.0] * len(ranked.steps)
        self._context, self._position = context, position
        self._taken = [0] * len(ranked.steps)  # completions that the host has seen, by row
        self._done: list[SimpleQueue[BaseException | None]] = [SimpleQueue() for _ in ranked.steps]
        self._failure: RowError | None = None
        self._is_inside = False  # does the host run a row of a stream, where nothing can wake it?
        self._threads = [StreamThread(name, context, self._done, self._fail) for name in ranked.streams]
        self._batches: list[list[Issued]] = [[] for _ in ranked.streams]

    def watch(self, watching: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """Let the handlers that run in other threads than the host's run inside `watching()`."""
        for thread in self._threads:
            thread.watching = watching

    def begin(self, iteration: int) -> None:
        """An iteration begins."""
        self.waited_s[:] = [0.0] * len(self.waited_s)

    def wait(self, step: Step, iteration: int) -> None:
        """Wait for the rows that must be complete before this one is issued."""
        taken = self._taken
        for other, lag in step.waits:
            while taken[other] <= iteration - lag:
                self._position.waiting(other)
                begin_s = clock()
                failure = self._done[other].get()
                self.waited_s[other] += clock() - begin_s
                if failure is not None:
                    raise failure
                taken[other] += 1

    def run(self, issued: Issued) -> None:
        """Run a COMPUTE, and what nothing can overlap with; hand anything else to its stream."""
        step = issued.step
        if step.stream == NO_STREAM:
            self._compute(issued)
        elif step.runs_inline:
            self._run_inline(issued)
        else:
            batch = self._batches[step.stream]
            batch.append(issued)
            if step.closes_batch:
                self._batches[step.stream] = []
                self._threads[step.stream].issue(batch)

    def end(self, times: Times, iteration: int) -> None:
        """All rows are issued; exchanges that nobody waited for may still be under way."""
        self.check()

    def drain(self) -> None:
        """Wait for all streams to finish what was issued."""
        for thread in self._threads:
            thread.drain()
        self.check()

    def close(self) -> None:
        """Wait for all streams to finish what was issued, and end their threads."""
        for thread in self._threads:
            thread.close()
        self.check()

    def check(self) -> None:
        """Raise what a stream has failed with."""
        if self._failure is not None:
            raise self._failure

    def _compute(self, issued: Issued) -> None:
        try:
            outputs = issued.post(self._context)
            issued.finish(outputs)
        except Exception as error:
            raise RowError(issued.step, issued.iteration) from error

    def _run_inline(self, issued: Issued) -> None:
        """Post a row and wait for it here. To the watchdog the host stands at the next row, which waits for this one."""
        number = issued.step.row.number
        self._position.set(issued.iteration, number + 1)
        self._position.waiting(number)
        # Whoever fails elsewhere looks at this behind noting its failure, and we look at that behind noting this: one of
        # both sees the other, whatever their order.
        self._is_inside = True
        self.check()
        try:
            outputs = issued.post(self._context)
            if type(outputs) is Pending:
                outputs = outputs.wait()
            issued.finish(outputs)
        except Exception as error:
            raise RowError(issued.step, issued.iteration) from error
        finally:
            self._is_inside = False
        self._taken[number] += 1
        self.waited_s[number] = issued.times.end[number] - issued.times.posted[number]

    def _fail(self, error: BaseException, issued: Issued) -> None:
        """Called by a stream: wake the host wherever it waits; where nothing wakes it, somebody else must be told."""
        failure = RowError(issued.step, issued.iteration)
        failure.__cause__ = error
        self._failure = failure
        for queue in self._done:
            queue.put(failure)
        if self._is_inside:
            self._context.report_failure(failure)
