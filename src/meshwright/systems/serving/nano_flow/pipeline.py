"""NanoPipeline: the kernels of several nano-batches on one device, each beside others on its share of the device, in time.

A line of kernels is run once by every nano-batch. One kernel of a resource runs at a time. Kernels bound by memory or network
have a share R each and run at the speed P(R) of their resource; what is computed beside them has the rest of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from meshwright.costs.cost import SpeedCurve
from meshwright.costs.roofline import HOST_LINK_BYTES_PER_S
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.step_line import COMPUTE, MEMORY, NETWORK, RESOURCES
from meshwright.systems.serving.nano_flow.nano_batch import (
    DECODES,
    Cut,
    Group,
    LinePeriod,
    near_attention,
    total,
)

CHUNKS = "chunks"  # what serving calls attention of prompts' chunks: it reads keys of all earlier tokens
FEWEST_LAID, MOST_LAID = 2, 6  # repetitions of a period that are laid out; others take what these differ by
# P(R) as the paper profiled them on an A100 (table 3; at 0.4 section 4.1.4). What is computed runs at its share.
CURVES: Mapping[str, SpeedCurve] = {
    MEMORY: SpeedCurve(((0.1, 0.2), (0.2, 0.3), (0.4, 0.8), (0.8, 0.85), (0.9, 0.95))),
    NETWORK: SpeedCurve(((0.1, 0.3), (0.2, 0.5), (0.8, 0.9), (0.9, 1.0))),
}
COPY = len(RESOURCES)  # the resource of blocks on their way to the host
COPY_SHARE = 0.1  # of the device: the smallest that was profiled
FULL, TINY, FOREVER = 1.0 + 1e-9, 1e-12, float("inf")
Slot = tuple[int, Group]  # a place of the line and a nano-batch: what has a share of its own


@cache
def speed(resource: str, share: float) -> float:
    """P(R) of a resource."""
    return CURVES[resource].speed(share)


class NanoPipeline:
    """What nano-batches of one cut take on one line. `copied_bytes`: keys and values of one block and token on a device, that
    go to the host beside what is computed; 0: none go."""

    def __init__(self, period: LinePeriod, cut: Cut, batch: BatchShape, copied_bytes: float = 0.0) -> None:
        self.period, self._cut, self._copied_bytes = period, cut, copied_bytes
        self._batches = cut.batches(batch)
        self._near = near_attention(period.line.places)
        self._graphs: dict[int, NanoGraph] = {}

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The kernels that have a share: those bound by memory or network, of every nano-batch."""
        places = self.period.line.places
        return tuple(
            (place, group)
            for place in self.period.laid(1)
            if places[place].resource != COMPUTE
            for group in self._groups(place)
        )

    def seconds(self, shares: Mapping[Slot, float] | None) -> float:
        """From the first kernel to the last, with these shares; None: as if kernels did not disturb each other."""
        number = self.period.number
        if number <= MOST_LAID:
            return self._laid_s(number, shares)
        few_s, many_s = self._laid_s(FEWEST_LAID, shares), self._laid_s(MOST_LAID, shares)
        return many_s + (number - MOST_LAID) * (many_s - few_s) / (MOST_LAID - FEWEST_LAID)

    @property
    def one_by_one_s(self) -> float:
        """All kernels of all nano-batches one behind the other, each alone on the device."""
        places = range(len(self.period.line.places))
        return sum(self._alone[group][place] for place in places for group in self._groups(place))

    @cached_property
    def _alone(self) -> dict[Group, list[float]]:
        """Seconds of every place by nano-batch; of an empty one none."""
        found = {}
        for group in {*self._cut.groups, *self._cut.parts}:
            own = total([self._batches[part] for part in group])
            found[group] = (
                self.period.line.seconds(own).tolist()
                if own.num_tokens
                else [0.0] * len(self.period.line.places)
            )
        return found

    def _groups(self, place: int) -> tuple[Group, ...]:
        return self._cut.parts if self._near[place] else self._cut.groups

    def _laid_s(self, number: int, shares: Mapping[Slot, float] | None) -> float:
        if number not in self._graphs:
            self._graphs[number] = NanoGraph.of(self._operations(self.period.laid(number)))
        graph, places = self._graphs[number], self.period.line.places
        if shares is None:
            return graph.span(graph.alone_s, [0.0] * len(graph.slots))
        seconds, own = list(graph.alone_s), [0.0] * len(graph.slots)
        for operation, slot in enumerate(graph.slots):
            if slot is not None:
                resource = places[slot[0]].resource if slot in shares else NETWORK
                own[operation] = share = shares.get(slot, COPY_SHARE)
                seconds[operation] /= speed(resource, share)
        return graph.span(seconds, own)

    def _operations(self, laid: Sequence[int]) -> Iterator[NanoOperation]:
        """In line order: each waits for those of the place before that have tokens in common with it, attention of chunks
        for those of all earlier tokens, too: their keys and values."""
        places, before, number = self.period.line.places, dict[Group, int](), 0
        for place in laid:
            now, kernel = dict[Group, int](), places[place]
            for group in self._groups(place):
                low = 0 if kernel.name == CHUNKS else group[0]
                waits = tuple(
                    of for other, of in before.items() if other[0] <= group[-1] and other[-1] >= low
                )
                slot = None if kernel.resource == COMPUTE else (place, group)
                resource = RESOURCES.index(kernel.resource)
                yield NanoOperation(resource, self._alone[group][place], slot, waits)
                now[group] = number
                number += 1
                if kernel.name == DECODES and self._copied_bytes:
                    copy_s = self._batches[group[0]].num_tokens * self._copied_bytes / HOST_LINK_BYTES_PER_S
                    yield NanoOperation(COPY, copy_s, (-1, group), waits)
                    number += 1
            before = now


class NanoOperation(NamedTuple):
    """One kernel of one nano-batch: the number of its resource, seconds alone, its slot (None: it is computed), and what
    it waits for."""

    resource: int
    alone_s: float
    slot: Slot | None
    waits: tuple[int, ...]


class NanoGraph(NamedTuple):
    """Operations as columns, in line order. `waiting`: for how many each waits; `behind`: who waits for it."""

    resources: list[int]
    alone_s: list[float]
    slots: list[Slot | None]
    waiting: list[int]
    behind: list[list[int]]

    @classmethod
    def of(cls, operations: Iterator[NanoOperation]) -> NanoGraph:
        """Of operations, each behind those that it waits for."""
        every = list(operations)
        behind: list[list[int]] = [[] for _ in every]
        for number, each in enumerate(every):
            for before in each.waits:
                behind[before].append(number)
        resources, alone_s, slots, waits = map(list, zip(*every, strict=True))
        return cls(resources, alone_s, slots, [len(each) for each in waits], behind)

    def span(self, seconds: Sequence[float], shares: Sequence[float]) -> float:
        """Seconds until all have run: one of a resource at a time, of those that are ready the first in line. Shares of what
        runs beside each other sum to at most 1; what is computed (resource 0) has the rest of the device."""
        resources, behind, waiting = self.resources, self.behind, list(self.waiting)
        queues: list[list[int]] = [[] for _ in range(COPY + 1)]  # in line order: so are heaps
        for number, count in enumerate(waiting):
            if not count:
                queues[resources[number]].append(number)
        running, ends = [-1] * len(queues), [FOREVER] * len(queues)
        now = taken = left = 0.0  # left: seconds of what is computed, alone on the device
        while True:
            for resource, queue in enumerate(queues):
                if queue and running[resource] < 0 and taken + shares[queue[0]] <= FULL:
                    number = running[resource] = heappop(queue)
                    taken += shares[number]
                    if resource:
                        ends[resource] = now + seconds[number]
                    else:
                        left = seconds[number]
            rate = 1.0 - taken
            if running[0] >= 0:
                ends[0] = now + left / rate if rate > TINY else FOREVER
            end = min(ends)
            if end == FOREVER:
                return now
            left -= (end - now) * rate
            now = end
            for resource, due in enumerate(ends):
                if due == end:
                    number, running[resource], ends[resource] = running[resource], -1, FOREVER
                    taken = taken - shares[number] if max(running) >= 0 else 0.0
                    for after in behind[number]:
                        waiting[after] -= 1
                        if not waiting[after]:
                            heappush(queues[resources[after]], after)
