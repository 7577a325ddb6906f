"""A step whose ranks go on to their next group when they are done with one: groups of falling degree, so that none waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.specs.sequence.degree_price import DegreePrice
from meshwright.specs.sequence.sequence_group import SequenceGroup
from meshwright.systems.sequence.flex_sp.layout import Load

FINEST = 0.004  # relative: how near the shortest step is searched that the sequences fit into
# What a new group is charged beyond its sequence's part of what it takes once, as a share of that: rather a sequence goes
# where there is room, which nobody comes to fill later.
OPENING = 0.1
ROUNDING = 1e-9  # relative, of seconds that were added up


class Placed(NamedTuple):
    """A group, and which of the aligned blocks of its degree it is on."""

    load: Load
    block: int


class TimedStep:
    """Groups of a step that is to end in time; `limit_s` seconds of every rank."""

    def __init__(self, num_ranks: int, prices: Sequence[DegreePrice], limit_s: float) -> None:
        self.prices, self.limit_s = prices, limit_s * (1 + ROUNDING)
        self.groups: list[Placed] = []
        # Of every degree the seconds of its aligned blocks' latest rank. Groups run in falling degree, whatever the order in
        # which they are filled, so the ranks of a block have done the same when its group begins, and seconds add up.
        self.ends = {price.degree: [0.0] * (num_ranks // price.degree) for price in prices}
        self._open: dict[int, list[Placed]] = {price.degree: [] for price in prices}

    @property
    def seconds(self) -> float:
        """When the last rank ends."""
        return max(max(ends, default=0.0) for ends in self.ends.values())

    def in_order(self) -> tuple[SequenceGroup, ...]:
        """Its groups, of falling degree, on their ranks."""
        found = sorted(self.groups, key=lambda placed: (-placed.load.price.degree, placed.block))
        return tuple(
            SequenceGroup(
                tuple(range(block * load.price.degree, (block + 1) * load.price.degree)), tuple(load.members)
            )
            for load, block in found
        )

    def place(self, number: int, length: int, shortest: int) -> bool:
        """Put a sequence where it takes the fewest seconds of ranks and ends in time; no longer one comes behind it, and none
        below `shortest`. False where it does not end in time anywhere."""
        best: tuple[float, float] | None = None
        chosen, added_s = None, 0.0
        for price in self.prices:
            if length > price.capacity:
                continue
            for placed in self._candidates(price, length):
                more_s = placed.load.with_change(length) - placed.load.seconds
                end_s = self.ends[price.degree][placed.block] + more_s
                if end_s > self.limit_s:
                    continue
                # what a group takes once is charged to all tokens that it may hold
                charged_s = price.start_s * length / price.capacity
                if not placed.load.members:
                    charged_s -= price.start_s * (1 - OPENING)
                cost = price.degree * (more_s + charged_s), end_s
                if best is None or cost < best:
                    best, chosen, added_s = cost, placed, more_s
        if chosen is None:
            return False
        self._take(chosen, number, length, added_s, shortest)
        return True

    def _candidates(self, price: DegreePrice, length: int) -> list[Placed]:
        """Of one degree the open group with room, and the block for a new one, that end first."""
        ends = self.ends[price.degree]
        found = []
        with_room = [each for each in self._open[price.degree] if each.load.tokens + length <= price.capacity]
        if with_room:
            found.append(min(with_room, key=lambda each: ends[each.block]))
        if ends:
            found.append(Placed(Load(price), ends.index(min(ends))))
        return found

    def _take(self, placed: Placed, number: int, length: int, added_s: float, shortest: int) -> None:
        load, degree = placed.load, placed.load.price.degree
        if not load.members:
            self.groups.append(placed)
            self._open[degree].append(placed)
        load.add(number, length)
        if load.tokens + shortest > load.price.capacity:
            self._open[degree].remove(placed)
        first, end = placed.block * degree, (placed.block + 1) * degree
        end_s = self.ends[degree][placed.block] + added_s
        for other, ends in self.ends.items():
            if other <= degree:
                for block in range(first // other, end // other):
                    ends[block] += added_s
            elif first // other < len(ends):
                ends[first // other] = max(ends[first // other], end_s)


def running_groups(
    lengths: Sequence[int],
    order: Sequence[int],
    num_ranks: int,
    prices: Sequence[DegreePrice],
    least_s: float,
) -> tuple[SequenceGroup, ...]:
    """Groups of the shortest step found, in the order in which they run.

    Args:
        order: numbers of the sequences, the longest first.
        least_s: seconds that no step falls below.
    """
    shortest, low_s, high_s = lengths[order[-1]], least_s, least_s

    def within(limit_s: float) -> TimedStep | None:
        step = TimedStep(num_ranks, prices, limit_s)
        return step if all(step.place(number, lengths[number], shortest) for number in order) else None

    found, width = None, FINEST
    while found is None:  # it ends: behind each other all sequences fit
        low_s, high_s, width = high_s, least_s * (1 + width), 2 * width
        found = within(high_s)
    while found.seconds - low_s > FINEST * least_s:
        middle_s = (low_s + found.seconds) / 2
        better = within(middle_s)
        if better:
            found = better
        else:
            low_s = middle_s
    return found.in_order()
