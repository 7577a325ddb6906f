"""The event engine: the start rule on a clock, where instructions that share a device or a link slow each other down."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependency_table import RING
from meshwright.ir.timing.replay import Wiring
from meshwright.simulator.certificate import occupies_links
from meshwright.simulator.pricing import Prices
from meshwright.specs.error import DeadlockError

Times = NDArray[np.float64]
HELD, COMPLETE = 0, 1  # events at equal times: streams are freed before results arrive, then by serial number


def run_events(
    wiring: Wiring, prices: Prices, *, iterations: int = 1, host: str = "asynchronous"
) -> tuple[Times, Times, Times]:
    """Posted, start and end of every row, ``[iterations, rows]`` in seconds, with contention.

    A resource whose demands sum to more than 1 slows all that use it down to that sum; an instruction runs at the rate of
    its slowest resource. Rates change only when something starts or ends, so time goes from event to event.

    Raises:
        DeadlockError: rows remain that can never be posted.
    """
    return _Run(wiring, prices, iterations, host).run()


class _Run:
    """One run: (iteration, row) is the number ``iteration * num_rows + row``."""

    def __init__(self, wiring: Wiring, prices: Prices, iterations: int, host: str) -> None:
        program = wiring.program
        self.wiring, self.program, self.prices = wiring, program, prices
        self.n, self.total = program.num_rows, program.num_rows * iterations
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
        self.use: dict[tuple[str, int] | str, dict[int, float]] = defaultdict(
            dict
        )  # resource -> leader -> share
        self.left: dict[int, tuple[float, float, float]] = {}  # leader -> (seconds left, since, rate)
        self.stamp: dict[int, int] = {}
        self.ends_of: dict[int, list[int]] = {}
        self.demand: dict[int, list[tuple[tuple[str, int] | str, float]]] = {}

    def run(self) -> tuple[Times, Times, Times]:
        lanes = list(range(len(self.stream_rows) + (self.program.num_lists if self.in_order else 0)))
        self._advance(lanes)
        while self.events:
            self.now, kind, _, g, stamp = heapq.heappop(self.events)
            if kind == HELD:
                if self.stamp.get(g) == stamp:
                    self._advance(self._finish(g))
            else:
                self._advance(sorted(self.waiting.pop(g, ())))
        stuck = [g for g in range(self.total) if self.end[g] < 0]
        if stuck:
            row = stuck[0] % self.n
            raise DeadlockError(
                f"{len(stuck)} rows can never be posted, first {self.program.text_of(row)}\n"
                + grid(self.program, row)
            )
        return tuple(np.array(x).reshape(-1, self.n) for x in (self.posted, self.start, self.end))  # type: ignore[return-value]

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
        self.left[leader] = (max(cost.seconds for cost in costs), self.now, 1.0)
        touched = {leader}
        for resource, share in self.demand[leader]:
            self.use[resource][leader] = self.use[resource].get(leader, 0.0) + share
            touched.update(self.use[resource])
        self._set_rates(touched)

    def _demands(self, ends: list[int]) -> list[tuple[tuple[str, int] | str, float]]:
        result: list[tuple[tuple[str, int] | str, float]] = []
        for e in ends:
            number = self.cost_of_row[e % self.n]
            cost, device = self.prices.costs[number], self.lists[e % self.n]
            result += [(("compute", device), cost.compute_share), (("memory", device), cost.memory_share)]
            if self.occupies[e % self.n]:
                result += [(name, share) for name, share in self.prices.demands[number]]
        return [(resource, share) for resource, share in result if share > 0]

    def _set_rates(self, leaders: set[int]) -> None:
        """New rates of what shares a resource with a change; each gets a new time of ending."""
        for leader in sorted(leaders):
            remaining, since, rate = self.left[leader]
            remaining = max(0.0, remaining - (self.now - since) * rate)
            fullest = max(
                (sum(self.use[resource].values()) for resource, _ in self.demand[leader]), default=1.0
            )
            rate = 1.0 / max(1.0, fullest)
            self.left[leader] = (remaining, self.now, rate)
            self.serial += 1
            self.stamp[leader] = self.serial
            heapq.heappush(self.events, (self.now + remaining / rate, HELD, self.serial, leader, self.serial))

    def _finish(self, leader: int) -> list[int]:
        """End an instruction: free what it used, and say which lanes may go on."""
        ends = self.ends_of.pop(leader)
        touched: set[int] = set()
        for resource, _ in self.demand.pop(leader):
            self.use[resource].pop(leader, None)
            touched.update(self.use[resource])
        del self.left[leader], self.stamp[leader]
        latency = max(self.prices.costs[self.cost_of_row[e % self.n]].latency_s for e in ends)
        lanes: list[int] = []
        for e in ends:
            self.held[e], self.end[e] = self.now, self.now + latency
            lanes.append(self.stream_of_row[e % self.n])
            if self.in_order and self.kinds[e % self.n] == Kind.COMPUTE:
                self.running[self.lists[e % self.n]] = False
            if self.in_order:
                lanes.append(len(self.stream_rows) + self.lists[e % self.n])
            if latency > 0:
                self.serial += 1
                heapq.heappush(self.events, (self.end[e], COMPLETE, self.serial, e, 0))
            lanes += sorted(self.waiting.get(e, ())) if latency > 0 else sorted(self.waiting.pop(e, ()))
        self._set_rates(touched & self.left.keys())
        return lanes
