"""CudaStreams: the streams of a rank as CUDA's own, an event behind every row; the host issues all ahead, waits at the end.

**This has not run on a GPU yet.** Its tests replace torch.cuda by a fake that keeps the times of streams and events and
records who waits for what.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Pending
from meshwright.executor.rank.rank_list import RankList, Step, Write
from meshwright.executor.rank.stream.issued import Issued, RowError
from meshwright.executor.rank.stream.row_times import Times, clock
from meshwright.executor.rank.watchdog import Position
from meshwright.ir.table import Kind

LEVELS = 2  # of objects within objects, in which tensors that a row reads are looked for: a group's state, what it sums


class CudaStreams:
    """Runs rows in the order in which the host reaches them, without waiting for any of them.

    A row that waits lets its own stream wait for the events of what it waits for. The host stands still only where a handler
    asks for a number (sizes known at run time, a norm that decides), and at the end of an iteration, where the times of all
    rows are read from their events; so nothing of an iteration is under way when the next one begins.

    Computes run on the stream that is current when this is made, so that what runs there between iterations is in order; all
    other streams are new. Memory belongs to the stream on which it was made: what a row reads of another stream is held until
    the row's event has come, however early the host forgets it. What a forward reads may live longer, in its graph, and goes
    when its backward is issued, not when that has run: the allocator is told which stream uses it (`record_stream`), and
    gives it to nobody before.

    ``cuda``: torch.cuda, except in tests.
    """

    def __init__(
        self, ranked: RankList, context: Context, position: Position, cuda: Any = torch.cuda
    ) -> None:
        self.waited_s = [0.0] * len(ranked.steps)
        self._steps, self._context, self._position, self._cuda = ranked.steps, context, position, cuda
        self._device_type = torch.device(context.device).type
        self._first = next((step.stream for step in ranked.steps if step.row.kind == Kind.COMPUTE), 0)
        self._streams = [cuda.Stream(device=context.device) for _ in ranked.streams]
        if self._streams:
            self._streams[self._first] = cuda.current_stream(context.device)
        self._batches: list[list[Issued]] = [[] for _ in ranked.streams]
        self._held: list[deque[tuple[Any, list[Tensor]]]] = [deque() for _ in ranked.streams]
        self._crossing = crossing_reads(ranked, self._first)
        self._origin, self._origin_s = self._event(), 0.0
        self._starts = [self._event() for _ in ranked.steps]
        # Of this iteration and of those that a row may still wait for; None: there was none.
        num_lines = 1 + max((lag for step in ranked.steps for _, lag in step.waits), default=0)
        self._ends: list[list[Any]] = [[None] * len(ranked.steps) for _ in range(num_lines)]
        self._line = 0  # of this iteration

    def watch(self, watching: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """All handlers run in the host's thread, which is watched already."""

    def begin(self, iteration: int) -> None:
        """All streams come behind what has run since the last iteration; times count from there."""
        self._line = iteration % len(self._ends)
        for place, stream in enumerate(self._streams):
            if place == self._first:
                self._origin.record(stream)
        self._origin_s = clock()
        for place, stream in enumerate(self._streams):
            if place != self._first:
                stream.wait_event(self._origin)

    def wait(self, step: Step, iteration: int) -> None:
        """Let the row's stream wait for the events of the rows that must be complete before it."""
        stream = self._streams[step.stream]
        for other, lag in step.waits:
            event = self._ends[(iteration - lag) % len(self._ends)][other]
            if event is not None:
                stream.wait_event(event)

    def run(self, issued: Issued) -> None:
        """Issue a row to its stream, with the others of its batch."""
        place = issued.step.stream
        self._batches[place].append(issued)
        if not issued.step.closes_batch:
            return
        batch, self._batches[place] = self._batches[place], []
        self._release(self._held[place])
        current = issued
        with self._cuda.stream(self._streams[place]):
            try:
                posted = []
                for current in batch:
                    posted.append(self._post(current))
                for current, result in zip(batch, posted, strict=True):
                    self._finish(current, result)
            except Exception as error:
                raise RowError(current.step, current.iteration) from error

    def end(self, times: Times, iteration: int) -> None:
        """Wait for the rows one by one, and read when they started and ended.

        A row that never ends is the one that the watchdog names.
        """
        ends = self._ends[self._line]
        for step in self._steps:
            number = step.row.number
            self._position.waiting(number)
            try:
                ends[number].synchronize()
            except RuntimeError as error:  # what a kernel has done wrong is said at the first event behind it
                raise RowError(step, iteration) from error
            times.start[number] = times.posted[number] = self._seconds(self._starts[number])
            times.end[number] = self._seconds(ends[number])
        for held in self._held:
            held.clear()
        self.waited_s[:] = waited_seconds(self._steps, times)

    def drain(self) -> None:
        """All has ended with its iteration."""
        self._cuda.synchronize(self._context.device)

    def close(self) -> None:
        """As `drain`: streams are CUDA's to give back."""
        self.drain()

    def _post(self, issued: Issued) -> Any:
        number = issued.step.row.number
        self._starts[number].record(self._streams[issued.step.stream])
        return issued.post(self._context)

    def _finish(self, issued: Issued, result: Any) -> None:
        """What comes back of an exchange is in order on this stream; that is what waiting for it means here."""
        step, number = issued.step, issued.step.row.number
        held = [one for place in self._crossing[number] for one in tensors_of(issued.inputs[place])]
        if step.row.kind == Kind.COMPUTE:
            for one in held:
                if one.device.type == self._device_type:  # states of the optimizer may be the host's
                    one.record_stream(self._streams[step.stream])
        issued.finish(result.wait() if type(result) is Pending else result)
        ends = self._ends[self._line]
        if ends[number] is None:
            ends[number] = self._event()
        ends[number].record(self._streams[step.stream])
        if held:
            self._held[step.stream].append((ends[number], held))

    def _release(self, held: deque[tuple[Any, list[Tensor]]]) -> None:
        """Let go of what rows have read that have ended."""
        while held and held[0][0].query():
            held.popleft()

    def _event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _seconds(self, event: Any) -> float:
        milliseconds: float = self._origin.elapsed_time(event)
        return self._origin_s + milliseconds / 1e3


def crossing_reads(ranked: RankList, first: int) -> list[list[int]]:
    """For every row the places of those inputs whose memory may be another stream's.

    On the stream of computes those that were made on another; on any other all, as what nothing wrote was made where computes
    run.
    """
    elsewhere = _made_elsewhere(ranked, first)
    found = []
    for step in ranked.steps:
        places = list(enumerate(step.reads))
        if step.stream == first:
            places = [
                (place, some)
                for place, some in places
                if any(line < ranked.num_lines and version in elsewhere for line, version, _ in _each(some))
            ]
        found.append([place for place, _ in places])
    return found


def _made_elsewhere(ranked: RankList, first: int) -> set[int]:
    """Versions whose memory may have been made on another stream than `first`: what is written in place, or added to, is
    where it was."""
    found: set[int] = set()
    for step in ranked.steps:
        read = {
            name: version
            for names, some in zip(step.row.reads, step.reads, strict=True)
            for name, (_, version, _) in zip(names or (), _each(some), strict=True)
        }
        for names, some in zip(step.row.writes, step.writes, strict=True):
            for name, write in zip(names or (), _each(some), strict=True):
                if step.stream != first or {write.before, read.get(name, -1)} & found:
                    found.add(write.version)
    return found


def _each(some: Any) -> Sequence[Any]:
    """The reads or writes of one pattern: none, one, or those of all groups."""
    if some is None:
        return ()
    return (some,) if isinstance(some, Write) or (some and isinstance(some[0], int)) else some


def tensors_of(value: object, levels: int = LEVELS) -> list[Tensor]:
    """The tensors that a value is, or has: in tuples, lists and mappings, and in objects within `levels` of each other."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        parts: Sequence[object] = list(value.values())
    elif isinstance(value, (tuple, list)):
        parts = value
    elif levels and hasattr(value, "__dict__"):
        parts, levels = list(vars(value).values()), levels - 1
    else:
        return []
    return [tensor for part in parts for tensor in tensors_of(part, levels)]


def waited_seconds(steps: Sequence[Step], times: Times) -> list[float]:
    """By row, for how long the stream of a compute stood still because the row was not complete."""
    waited = [0.0] * len(steps)
    free_s: dict[int, float] = {}  # by stream: when the row before has ended
    for step in steps:
        number = step.row.number
        now = [other for other, lag in step.waits if lag == 0]
        if step.row.kind == Kind.COMPUTE and now and step.stream in free_s:
            last = max(now, key=times.end.__getitem__)
            waited[last] += max(0.0, min(times.end[last], times.start[number]) - free_s[step.stream])
        free_s[step.stream] = times.end[number]
    return waited
