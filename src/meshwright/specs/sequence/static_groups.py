"""Groups of one degree for all sequences of a step: what algorithms that choose a degree for each are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup

STATIC = "static"  # its name in the slot


@dataclass(frozen=True)
class StaticGroups:
    """All sequences on groups of as many ranks, as one context-parallel degree has it: dealt out the longest first, to the
    ranks that compute the least so far, and packed as far as they fit.

    Args:
        degree: ranks of every group; 0: all of them.
        adapts: for every batch the degree whose step is the shortest by the costs (FlexSP's baseline of batches).
    """

    degree: int = option(0, "Ranks of every group; 0: all of them.", least=0)
    adapts: bool = option(False, "Take for every batch the degree whose step is the shortest.")

    def __call__(self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> GroupedBatch:
        """Groups of all sequences. Raises PlanError where the longest does not fit, or the degree does not divide ranks."""
        if self.degree and self.adapts:
            raise PlanError(
                f"groups of {self.degree} ranks that adapt",
                allowed="a degree, or adapts=True",
                next="leave one out",
            )
        least = costs.least_degree(max(lengths))
        if not self.adapts:
            return self._of_degree(
                self._checked(least, max(lengths), num_ranks, costs), lengths, num_ranks, costs
            )
        degrees = [degree for degree in _degrees(num_ranks, costs) if degree >= least]
        if not degrees:
            raise _too_long(max(lengths), num_ranks, least)
        tried = [self._of_degree(degree, lengths, num_ranks, costs) for degree in degrees]
        return min(tried, key=lambda batch: max(finish_seconds(batch, costs)))

    def _checked(self, least: int, longest: int, num_ranks: int, costs: SequenceCosts) -> int:
        """The degree of every group."""
        degrees = _degrees(num_ranks, costs)
        degree = self.degree or max(degrees)
        if degree not in degrees:
            raise PlanError(
                f"groups of {degree} ranks where there are {num_ranks}",
                allowed=f"a degree of {' or '.join(map(str, degrees))}",
                next="leave the degree out for groups of all ranks",
            )
        if degree < least:
            raise _too_long(longest, degree, least)
        return degree

    def _of_degree(
        self, degree: int, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts
    ) -> GroupedBatch:
        lanes: list[list[int]] = [[] for _ in range(num_ranks // degree)]
        busy_s = [0.0] * len(lanes)
        for number in sorted(range(len(lengths)), key=lambda each: (-lengths[each], each)):
            lane = busy_s.index(min(busy_s))
            lanes[lane].append(number)
            busy_s[lane] += costs.compute_seconds((lengths[number],), degree)
        most = costs.capacity_tokens * degree
        packs = zip_longest(*(_packs(lane, lengths, most) for lane in lanes), fillvalue=())
        groups = (
            SequenceGroup(tuple(range(lane * degree, (lane + 1) * degree)), pack)
            for turn in packs for lane, pack in enumerate(turn) if pack
        )  # fmt: skip
        return GroupedBatch(tuple(lengths), num_ranks, tuple(groups))


def _degrees(num_ranks: int, costs: SequenceCosts) -> list[int]:
    """Of groups that are all alike."""
    every = (degree for degree in range(1, num_ranks + 1) if num_ranks % degree == 0)
    return [degree for degree in every if not costs.degrees or degree in costs.degrees]


def _too_long(longest: int, degree: int, least: int) -> PlanError:
    return PlanError(
        f"a sequence of {longest:,} tokens on groups of {degree} ranks",
        allowed=f"{least} ranks and more, by the memory of one",
        next="cut sequences shorter (--seq), or take larger groups",
    )


def _packs(numbers: Sequence[int], lengths: Sequence[int], most: float) -> Iterator[tuple[int, ...]]:
    """Sequences, the longest first, each in the first pack where it still fits, which has at most so many tokens."""
    packs: list[list[int]] = []
    held: list[int] = []
    for number in numbers:
        place = next((n for n, tokens in enumerate(held) if tokens + lengths[number] <= most), len(packs))
        if place == len(packs):
            packs.append([])
            held.append(0)
        packs[place].append(number)
        held[place] += lengths[number]
    return map(tuple, packs)
