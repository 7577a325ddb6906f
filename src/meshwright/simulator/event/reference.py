"""The reference of the event engine: contention in obvious Python, kept for ever; the kernel is tested against it."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import SpeedCurve
from meshwright.ir.grid import grid
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependency_table import RING
from meshwright.ir.timing.wiring import Wiring
from meshwright.simulator.certificate import occupies_links
from meshwright.simulator.pricing import Prices
from meshwright.specs.error import DeadlockError

Times = NDArray[np.float64]
Resource = tuple[str, int] | str
Demand = tuple[Resource, int, SpeedCurve | None]
# Shares are summed in whole units, so that a sum is the same in whatever order what shares a resource came and went: a
# rounding error would grow, as a little later here is much later there. Rounded down: what fits exactly, fits.
UNITS = 1 << 40
HELD, COMPLETE = 0, 1  # events at equal times: streams are freed before results arrive, then by serial number


def interpret_events(
    wiring: Wiring, prices: Prices, *, iterations: int = 1, host: str = "asynchronous"
) -> tuple[Times, Times, Times]:
    """Posted, start and end of every row, ``[iterations, rows]`` in seconds, with contention.

    As `run_events`, one event at a time, with a stale event left in the heap wherever a rate changes.

    Raises:
        DeadlockError: rows remain that can never be posted.
    """
    return _Run(wiring, prices, iterations, host).run()


def never_posted(program: Program, end: Times) -> DeadlockError:
    """The error of a run that stopped with rows left; their end is negative."""
    stuck = np.flatnonzero(end.reshape(-1) < 0)
    row = int(stuck[0]) % program.num_rows
    return DeadlockError(
        f"{len(stuck)} rows can never be posted, first {program.text_of(row)}\n" + grid(program, row)
    )


class _Run:
    """One run: (iteration, row) is the number ``iteration * num_rows + row``."""

    def __init__(self, wiring: Wiring, prices: Prices, iterations: int, host: str) -> None:
        program = wiring.program
        self.wiring, self.program, self.prices = wiring, program, prices
        self.n, self.iterations, self.total = program.num_rows, iterations, program.num_rows * iterations
        self.in_order = host == "in_order"
        self.kinds, self.batch = program.kinds.tolist(), program.columns.batch.tolist()
        self.lists, self.next_end = program.list_of_row.tolist(), wiring.next_end.tolist()
        self.occupies = occupies_links(wiring).tolist()
        self.cost_of_row = prices.cost_of_row.tolist()
        self.stream_of_row = wiring.stream_of_row.tolist()
        self.stream_rows = [
            wiring.stream_rows[wiring.stream_ptr[s] : wiring.stream_ptr[s + 1]].tolist()
            for s in range(len(wiring.stream_ptr) - 1)
        ]
        self.offsets = program.offsets.tolist()
        deps = wiring.deps
        self.deps = [
            list(
                zip(
                    *(x[deps.ptr[i] : deps.ptr[i + 1]].tolist() for x in (deps.row, deps.lag, deps.version)),
                    strict=True,
                )
            )
            for i in range(self.n)
        ]
        self.posted, self.start, self.held, self.end = ([-1.0] * self.total for _ in range(4))
        self.issued = [-1.0] * self.total
        self.place = [0] * len(self.stream_rows)  # rows that have left each stream, over all iterations
        self.walked = [0] * program.num_lists
        self.running = [False] * program.num_lists  # is the host of a list busy with a COMPUTE?
        self.waiting: dict[int, set[int]] = defaultdict(set)  # (iteration, row) -> lanes that wait for it
        self.now, self.serial = 0.0, 0
        self.events: list[tuple[float, int, int, int, int]] = []
        self.use: dict[Resource, dict[int, int]] = defaultdict(dict)  # resource -> leader -> share
        self.touched: set[int] = set()  # leaders that share a resource with a change
        self.left: dict[int, tuple[float, float, float]] = {}  # leader -> (seconds left, since, rate)
        self.stamp: dict[int, int] = {}
        self.ends_of: dict[int, list[int]] = {}
        self.demand: dict[int, list[Demand]] = {}

    def run(self) -> tuple[Times, Times, Times]:
        lanes = list(range(len(self.stream_rows) + (self.program.num_lists if self.in_order else 0)))
        self._advance(lanes)
        self._set_rates()
        while self.events:
            self._advance(self._next_events())
            self._set_rates()
        if min(self.end, default=0.0) < 0:
            raise never_posted(self.program, np.array(self.end))
        return tuple(
            np.array(x).reshape(self.iterations, self.n) for x in (self.posted, self.start, self.end)
        )  # type: ignore[return-value]

    def _next_events(self) -> list[int]:
        """Everything that is due at the next time, together; the lanes that may go on then."""
        self.now = self.events[0][0]
        due = []
        while self.events and self.events[0][0] == self.now:
            due.append(heapq.heappop(self.events))
        lanes: list[int] = []
        for _, kind, _, g, stamp in due:
            if kind == COMPLETE:
                lanes += sorted(self.waiting.pop(g, ()))
            elif self.stamp.get(g) == stamp:
                lanes += self._finish(g)
        return lanes

    def _advance(self, lanes: list[int]) -> None:
        """Let lanes go as far as they can now; a lane that frees others is followed by them."""
        todo = list(lanes)
        while todo:
            lane = todo.pop()
            todo.extend(self._step_host(lane) if lane >= len(self.stream_rows) else self._step_stream(lane))

    def _blocked(self, g: int, lane: int) -> bool:
        """Does something that a row waits for remain? Then the lane is told when it is done."""
        iteration, row = divmod(g, self.n)
        for other, lag, version in self.deps[row]:
            if lag > iteration:
                continue
            past = (iteration - lag) * self.n + other
            at = self.held[past] if version == RING else self.end[past]
            if at < 0 or at > self.now:
                self.waiting[past].add(lane)
                return True
        return False

    def _batch_of(self, s: int) -> list[int]:
        """The rows (as iteration and row) at the head of a stream; none at its end."""
        rows = self.stream_rows[s]
        iteration, place = divmod(self.place[s], len(rows))
        first = iteration * self.n + rows[place]
        if first >= self.total:
            return []
        batch = [first]
        while self.batch[rows[place]] and place + len(batch) < len(rows):
            following = rows[place + len(batch)]
            if self.batch[following] != self.batch[rows[place]]:
                break
            batch.append(iteration * self.n + following)
        return batch

    def _step_stream(self, s: int) -> list[int]:
        """Post what is at the head of a stream, start what has all its ends, leave when it has ended."""
        batch = self._batch_of(s)
        if not batch:
            return []
        if self.posted[batch[0]] < 0:
            if self.in_order and (
                self.kinds[batch[0] % self.n] == Kind.COMPUTE or any(self.issued[g] < 0 for g in batch)
            ):
                return []
            if any(self._blocked(g, s) for g in batch):
                return []
            for g in batch:
                self.posted[g] = self.now
            for g in batch:
                self._try_start(g)
        if any(self.held[g] < 0 or self.held[g] > self.now for g in batch):
            return []
        self.place[s] += len(batch)
        host = len(self.stream_rows) + self.lists[batch[0] % self.n]
        return [s, host] if self.in_order else [s]

    def _step_host(self, lane: int) -> list[int]:
        """The in-order host of a list: wait until a row is ready, issue it, run COMPUTE itself."""
        d = lane - len(self.stream_rows)
        length = self.offsets[d + 1] - self.offsets[d]
        if self.running[d] or not length:
            return []
        iteration, place = divmod(self.walked[d], length)
        g = iteration * self.n + self.offsets[d] + place
        if g >= self.total or self._blocked(g, lane):
            return []
        s = self.stream_of_row[g % self.n]
        if self.kinds[g % self.n] == Kind.COMPUTE:
            if self._batch_of(s)[:1] != [g]:
                return []
            self.walked[d] += 1
            self.running[d] = True
            self.posted[g] = self.now
            self._try_start(g)
            return []
        self.walked[d] += 1
        self.issued[g] = self.now
        return [lane, s]

    def _try_start(self, g: int) -> None:
        """Start an instruction whose ends are all posted."""
        iteration, row = divmod(g, self.n)
        ends, other = [g], self.next_end[row]
        while other != row:
            ends.append(iteration * self.n + other)
            other = self.next_end[other]
        if self.start[g] >= 0 or any(self.posted[e] < 0 for e in ends):
            return
        leader = min(ends)
        costs = [self.prices.costs[self.cost_of_row[e % self.n]] for e in ends]
        for e in ends:
            self.start[e] = self.now
        self.ends_of[leader] = ends
        self.demand[leader] = self._demands(ends)
        self.left[leader] = (max(cost.seconds for cost in costs), self.now, 0.0)
        self.touched.add(leader)
        for resource, share, _ in self.demand[leader]:
            self.use[resource][leader] = self.use[resource].get(leader, 0) + share
            self.touched.update(self.use[resource])

    def _demands(self, ends: list[int]) -> list[Demand]:
        result: list[Demand] = []
        for e in ends:
            number = self.cost_of_row[e % self.n]
            cost, device = self.prices.costs[number], self.lists[e % self.n]
            own: list[tuple[Resource, float]] = [
                (("compute", device), cost.compute_share),
                (("memory", device), cost.memory_share),
            ]
            links = self.prices.demands[number] if self.occupies[e % self.n] else ()
            result += [(name, int(share * UNITS), cost.curve) for name, share in (*own, *links)]
        return [demand for demand in result if demand[1] > 0]

    def _set_rates(self) -> None:
        """New rates of what shares a resource with a change; what has another gets a new time of ending."""
        for leader in sorted(self.touched & self.left.keys()):
            remaining, since, before = self.left[leader]
            rate = min((self._speed(*demand) for demand in self.demand[leader]), default=1.0)
            if rate == before:
                continue
            remaining = max(0.0, remaining - (self.now - since) * before)
            self.left[leader] = (remaining, self.now, rate)
            self.serial += 1
            self.stamp[leader] = self.serial
            heapq.heappush(self.events, (self.now + remaining / rate, HELD, self.serial, leader, self.serial))
        self.touched.clear()

    def _speed(self, resource: Resource, _: int, curve: SpeedCurve | None) -> float:
        """Speed with what a resource grants: the same part of every demand; in proportion to it, or as the curve says."""
        granted = 1.0 / max(1.0, sum(self.use[resource].values()) / UNITS)
        return curve.speed(granted) if curve else granted

    def _finish(self, leader: int) -> list[int]:
        """End an instruction: free what it used, and say which lanes may go on."""
        ends = self.ends_of.pop(leader)
        for resource, _, _ in self.demand.pop(leader):
            self.use[resource].pop(leader, None)
            self.touched.update(self.use[resource])
        del self.left[leader], self.stamp[leader]
        latency = max(self.prices.costs[self.cost_of_row[e % self.n]].latency_s for e in ends)
        complete = self.now + latency
        lanes: list[int] = []
        for e in ends:
            self.held[e], self.end[e] = self.now, complete
            lanes.append(self.stream_of_row[e % self.n])
            if self.in_order and self.kinds[e % self.n] == Kind.COMPUTE:
                self.running[self.lists[e % self.n]] = False
            if self.in_order:
                lanes.append(len(self.stream_rows) + self.lists[e % self.n])
            if complete > self.now:
                self.serial += 1
                heapq.heappush(self.events, (complete, COMPLETE, self.serial, e, 0))
            lanes += sorted(self.waiting.get(e, ()) if complete > self.now else self.waiting.pop(e, ()))
        return lanes
