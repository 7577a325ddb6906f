"""The groups of one micro-batch: a layout of degrees, and which sequences each of its groups takes.

Sequences go, the longest first, each to the group that is done first with it; the layout is improved by halving a group or
joining two, and what came out by moving or exchanging sequences of the group that ends last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.specs.sequence.degree_price import DegreePrice

Layout = tuple[int, ...]  # degrees of the groups, the largest first
NUM_STARTS = 2  # layouts that are improved, of those that one degree each gives
GAIN = 1e-9  # relative: what gains less is rounding


@dataclass
class Load:
    """A group while it is filled: sequences by their numbers, and their sums."""

    price: DegreePrice
    members: list[int] = field(default_factory=list)
    squares: int = 0
    tokens: int = 0

    @property
    def seconds(self) -> float:
        """Of the group; nothing while it is empty."""
        return self.price.seconds(self.squares, self.tokens) if self.members else 0.0

    def with_change(self, added: int, removed: int = 0) -> float:
        """Seconds with a sequence of `added` tokens more and one of `removed` less; infinite where they do not fit."""
        tokens = self.tokens + added - removed
        if tokens > self.price.capacity:
            return float("inf")
        if not tokens:
            return 0.0
        return self.price.seconds(self.squares + added * added - removed * removed, tokens)

    def add(self, number: int, length: int) -> None:
        """Take a sequence."""
        self.members.append(number)
        self.squares += length * length
        self.tokens += length

    def drop(self, number: int, length: int) -> None:
        """Give a sequence away."""
        self.members.remove(number)
        self.squares -= length * length
        self.tokens -= length


class Packed(NamedTuple):
    """A micro-batch's groups, and when the last of them ends."""

    loads: tuple[Load, ...]
    seconds: float


class Packing:
    """Groups of one micro-batch: `numbers` of sequences, the longest first, over so many ranks."""

    def __init__(
        self, lengths: Sequence[int], numbers: Sequence[int], num_ranks: int, prices: Sequence[DegreePrice]
    ) -> None:
        self.lengths, self.numbers, self.num_ranks = lengths, numbers, num_ranks
        self.prices = {price.degree: price for price in prices}
        self._known: dict[Layout, Packed | None] = {}

    def best(self) -> Packed | None:
        """The best found; None where no layout holds the sequences."""
        starts = {layout: self.packed(layout) for layout in self._starts()}
        ranked = sorted((packed.seconds, layout) for layout, packed in starts.items() if packed)
        found = [self._improved(layout) for _, layout in ranked[:NUM_STARTS]]
        return min(found, key=lambda packed: packed.seconds, default=None)

    def packed(self, layout: Layout) -> Packed | None:
        """Sequences in the groups of a layout, each where it is done first; None where one fits nowhere."""
        if layout not in self._known:
            self._known[layout] = self._packed(layout)
        return self._known[layout]

    def _packed(self, layout: Layout) -> Packed | None:
        heaps: dict[int, list[tuple[float, int, Load]]] = {}
        for number, degree in enumerate(layout):
            heaps.setdefault(degree, []).append((0.0, number, Load(self.prices[degree])))
        for number in self.numbers:
            length = self.lengths[number]
            end, at = min((heap[0][2].with_change(length), degree) for degree, heap in heaps.items())
            if end < float("inf"):
                _, place, load = heaps[at][0]
                load.add(number, length)
                heapq.heapreplace(heaps[at], (end, place, load))
                continue
            others = (
                (entry[2].with_change(length), degree, index)
                for degree, heap in heaps.items()
                for index, entry in enumerate(heap)
            )
            end, at, index = min(others)
            if end == float("inf"):
                return None
            _, place, load = heaps[at][index]
            load.add(number, length)
            heaps[at][index] = (end, place, load)
            heapq.heapify(heaps[at])
        loads = tuple(load for heap in heaps.values() for _, _, load in heap if load.members)
        return Packed(loads, max(load.seconds for load in loads))

    def _starts(self) -> Iterator[Layout]:
        """For every degree the layout of groups of it, with larger ones for the sequences that need more."""
        for degree in self.prices:
            found, left = [], self.num_ranks
            needed: dict[int, int] = {}
            for number in self.numbers:
                length = self.lengths[number]
                if length <= self.prices[degree].capacity:
                    break
                least = next((d for d in sorted(self.prices) if length <= self.prices[d].capacity), 0)
                needed[least] = needed.get(least, 0) + length
            for larger in sorted(needed, reverse=True):
                count = -(-needed[larger] // max(1, int(self.prices[larger].capacity))) if larger else 0
                found += [larger] * count
            left -= sum(found)
            if left < 0 or 0 in needed:
                continue
            yield self._filled(found, left, degree)

    def _filled(self, found: list[int], left: int, degree: int) -> Layout:
        """A layout with groups of a degree on the ranks that are left, and smaller ones on those they do not fill."""
        for each in sorted((d for d in self.prices if d <= degree), reverse=True):
            count, left = divmod(left, each)
            found = [*found, *[each] * count]
        return tuple(sorted(found, reverse=True))

    def _improved(self, layout: Layout) -> Packed:
        """The best layout reached by halving groups and joining two, and its sequences moved and exchanged."""
        packed = self.packed(layout)
        assert packed is not None, "a start that holds its sequences"
        while True:
            better, reached = packed, layout
            for other in self._neighbours(layout):
                found = self.packed(other)
                if found and found.seconds < better.seconds * (1 - GAIN):
                    better, reached = found, other
            if better is packed:
                return rebalanced(packed, self.lengths)
            packed, layout = better, reached

    def _neighbours(self, layout: Layout) -> Iterator[Layout]:
        degrees = sorted(set(layout))
        for degree in degrees:
            rest = list(layout)
            rest.remove(degree)
            if degree // 2 in self.prices and degree % 2 == 0:
                yield tuple(sorted([*rest, degree // 2, degree // 2], reverse=True))
            if layout.count(degree) > 1 and 2 * degree in self.prices:
                rest.remove(degree)
                yield tuple(sorted([*rest, 2 * degree], reverse=True))


def rebalanced(packed: Packed, lengths: Sequence[int]) -> Packed:
    """Move a sequence of the group that ends last to another, or exchange it for a shorter one, while that helps."""
    loads = [Load(load.price, list(load.members), load.squares, load.tokens) for load in packed.loads]
    while True:
        last = max(loads, key=lambda load: load.seconds)
        change = _best_change(last, loads, lengths)
        if change is None:
            return Packed(tuple(load for load in loads if load.members), last.seconds)
        other, given, taken = change
        last.drop(given, lengths[given])
        other.add(given, lengths[given])
        if taken is not None:
            other.drop(taken, lengths[taken])
            last.add(taken, lengths[taken])


def _best_change(
    last: Load, loads: Sequence[Load], lengths: Sequence[int]
) -> tuple[Load, int, int | None] | None:
    """Whose sequences to exchange with the group that ends last: (other group, given, taken)."""
    best, found = last.seconds * (1 - GAIN), None
    for other in loads:
        if other is last or other.seconds >= best:
            continue
        for given in last.members:
            for taken in (None, *other.members):
                length = 0 if taken is None else lengths[taken]
                if length >= lengths[given]:
                    continue
                end = max(last.with_change(length, lengths[given]), other.with_change(lengths[given], length))
                if end < best:
                    best, found = end, (other, given, taken)
    return found
