"""Any number of ranks for a sequence, as few as hold it; short ones packed; who is behind is given the next."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.systems.sequence.best_fit import packed

BALANCES = ("dp", "pp", "none")
MANY_GROUPS = 8  # of a rank: of so many each is little, and ranks are even with full packs
SMALLER_PACKS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6)  # of what a rank holds: what is tried where there are fewer


class Unit(NamedTuple):
    """What is given to ranks as a whole: a long sequence, or short ones that fill a rank."""

    sequences: tuple[int, ...]
    degree: int
    offload: float
    seconds: float


@dataclass(frozen=True)
class ByteScale:
    """Groups of a step by hybrid data parallelism (Ge et al. 2025, arXiv 2502.21231).

    A sequence gets the least ranks that hold it, not a power of two of them. Short ones are packed, each where it leaves the
    least room, and where ranks have few groups also into less than they hold. What this gives is dealt out by `balance`:

    - "dp": longest first, to the ranks that are free first (the paper's DP-balance);
    - "pp": into `buckets` of equal seconds by length; every rank takes from its own bucket, so that what follows each other
      in its pipeline is alike (PP-balance);
    - "none": in turn, by the number of ranks (the paper's naive HDP).
    """

    balance: str = option("dp", 'How ranks are kept even: "dp", "pp" or "none".')
    tokens: int = option(0, "Tokens of a rank, the paper's C; 0: what its memory holds.", least=0)
    offloads: bool = option(True, "Do long sequences wait in the host's memory where computes hide the way?")
    longest: float = option(0.5, "Share of a rank's mean seconds that one sequence may take.", above=0.0)
    buckets: int = option(8, "Levels of lengths, under the balance of pipelines.", least=1)

    def __post_init__(self) -> None:
        if self.balance not in BALANCES:
            raise PlanError(f"balance={self.balance!r}", allowed=", ".join(BALANCES))

    def __call__(self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> GroupedBatch:
        """Groups of all sequences, the first given out first. Raises PlanError for a sequence that all ranks do not hold."""
        costs = costs.holding(self.tokens)
        tried = [self._packed(lengths, num_ranks, costs, 1.0)]
        if self.balance != "none":
            if len(tried[0].groups) < MANY_GROUPS * num_ranks:
                tried += [self._packed(lengths, num_ranks, costs, share) for share in SMALLER_PACKS]
            if any(group.offload for group in tried[0].groups):
                tried.append(self._packed(lengths, num_ranks, costs, 1.0, is_filled=True))
        return min(tried, key=lambda one: max(finish_seconds(one, costs)))

    def _packed(
        self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts, share: float, is_filled: bool = False
    ) -> GroupedBatch:  # fmt: skip
        """Groups with packs of a share of what a rank holds; `is_filled`: as `filling` has them."""
        units = units_of(lengths, num_ranks, costs, self.offloads, self.longest, share)
        if is_filled:
            units = [filling(unit, lengths, num_ranks, costs) for unit in units]
        if self.balance == "none":
            groups = in_turn(units, num_ranks)
        else:
            levels = buckets_of(units, self.buckets if self.balance == "pp" else 1)
            groups = by_level(levels, num_ranks)
        return GroupedBatch(tuple(lengths), num_ranks, tuple(groups))


def units_of(
    lengths: Sequence[int],
    num_ranks: int,
    costs: SequenceCosts,
    offloads: bool = True,
    longest: float = 1.0,
    share: float = 1.0,
) -> list[Unit]:
    """What is given out, in the order of the batch: every long sequence, and packs of short ones at the first of each, of up
    to a share of what a rank holds.

    Few ranks may be enough for an offloaded sequence, which are then busy longer than all others: one that would take more
    than `longest` of the mean seconds of a rank gets more ranks.

    Raises PlanError for a sequence that all ranks together do not hold.
    """
    long, short = [], []
    for number, length in enumerate(lengths):
        degree, offload = ranks_of(length, costs, offloads)
        if degree > num_ranks:
            raise PlanError(
                f"sequence {number} of {length:,} tokens needs {degree} ranks of {num_ranks}",
                allowed=f"up to {int(num_ranks * costs.capacity_tokens):,} tokens",
                next="take more devices, or cut sequences at a shorter context",
            )
        if degree == 1 and not offload:
            short.append(number)
        else:
            long.append(Unit((number,), degree, offload, costs.seconds((length,), degree, offload)))
    packs = packed(lengths, short, int(share * costs.capacity_tokens + 1e-9))
    units = long + [Unit(pack, 1, 0.0, costs.seconds([lengths[one] for one in pack], 1)) for pack in packs]
    most_s = longest * sum(unit.degree * unit.seconds for unit in units) / num_ranks
    units = [widened(unit, lengths, num_ranks, costs, most_s) for unit in units]
    return sorted(units, key=lambda unit: unit.sequences[0])


def widened(unit: Unit, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts, most_s: float) -> Unit:
    """The unit on as many ranks as let it take `most_s` seconds, at most those that hold it with nothing offloaded."""
    if not unit.offload or unit.seconds <= most_s:
        return unit
    degrees = _wider(unit, lengths, num_ranks, costs)
    wanted = unit.degree * unit.seconds / most_s
    return _on(min((one for one in degrees if one >= wanted), default=max(degrees)), unit, lengths, costs)


def filling(unit: Unit, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> Unit:
    """The unit on so many ranks that as many of its kind as run beside each other fill all of them: where most of a step is
    such sequences, nothing else could run on what they leave."""
    if not unit.offload:
        return unit
    filled = num_ranks // (num_ranks // unit.degree)
    degrees = [one for one in _wider(unit, lengths, num_ranks, costs) if one <= filled]
    return _on(max(degrees, default=unit.degree), unit, lengths, costs)


def _wider(unit: Unit, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> list[int]:
    """Degrees of an offloaded unit up to that which holds it with nothing offloaded."""
    most = min(num_ranks, ceil(lengths[unit.sequences[0]] / costs.capacity_tokens))
    found = [one for one in costs.degrees or range(1, most + 1) if unit.degree <= one <= most]
    return found or [unit.degree]


def _on(degree: int, unit: Unit, lengths: Sequence[int], costs: SequenceCosts) -> Unit:
    """The unit on so many ranks, with the least share of it offloaded."""
    (length,) = own = [lengths[number] for number in unit.sequences]
    offload = least_offload(length, degree, costs)
    return Unit(unit.sequences, degree, offload, costs.seconds(own, degree, offload))


def ranks_of(length: int, costs: SequenceCosts, offloads: bool = True) -> tuple[int, float]:
    """The least ranks that hold a sequence, and the least share to offload with which they do: of what the forward hides on
    the way to the host (`SequenceCosts.hidden_offload`)."""
    most = costs.hidden_offload(length) if offloads else 0.0
    degree = costs.least_degree(length, most)
    return degree, min(most, least_offload(length, degree, costs)) if most else 0.0


def least_offload(length: int, degree: int, costs: SequenceCosts) -> float:
    """The share of a sequence that has to go to the host for d ranks to hold it: (token_bytes - d room / s) / offload_bytes.

    With l layers of which two stay, Act(s) bytes of a layer and C tokens of a rank: l / (l - 2) (1 - d Act(C) / Act(s)). The
    bound that the paper prints, min(1, l Act(C) / ((l - 2) Act(s))), is what this leaves of l / (l - 2), for one rank.
    """
    room = costs.capacity_tokens * costs.token_bytes
    return min(1.0, max(0.0, (costs.token_bytes - degree * room / length) / costs.offload_bytes))


def in_turn(units: Sequence[Unit], num_ranks: int) -> list[SequenceGroup]:
    """Each to as many ranks as it needs, behind those that the one before was given to."""
    groups, first = [], 0
    for unit in units:
        ranks = sorted((first + place) % num_ranks for place in range(unit.degree))
        groups.append(SequenceGroup(tuple(ranks), unit.sequences, unit.offload))
        first = (first + unit.degree) % num_ranks
    return groups


def buckets_of(units: Sequence[Unit], num_buckets: int) -> list[list[Unit]]:
    """Units by seconds, the longest first, cut into buckets of about equal seconds of ranks."""
    ordered = sorted(units, key=lambda unit: (-unit.seconds, -unit.degree, unit.sequences))
    total_s = sum(unit.seconds * unit.degree for unit in ordered)
    buckets: list[list[Unit]] = [[] for _ in range(num_buckets)]
    before_s = 0.0
    for unit in ordered:
        buckets[min(num_buckets - 1, int(num_buckets * before_s / total_s))].append(unit)
        before_s += unit.seconds * unit.degree
    return buckets


def by_level(levels: Sequence[Sequence[Unit]], num_ranks: int) -> list[SequenceGroup]:
    """The rank that is free first takes the next of its level, or of the longest that is left, with the ranks that are free
    next; it begins when the last of them is, and the others do meanwhile what fits there of what needs one rank."""
    dealt = _Dealt([list(reversed(level)) for level in levels], [(0.0, rank) for rank in range(num_ranks)])
    while (unit := dealt.next()) is not None:
        taken = [heapq.heappop(dealt.free) for _ in range(unit.degree)]
        begin_s = taken[-1][0]
        for free_s, rank in taken[:-1]:
            dealt.fill(rank, begin_s - free_s)
        dealt.give(unit, [rank for _, rank in taken], begin_s + unit.seconds)
    return dealt.groups


class _Dealt:
    """Units that are left, ranks by when they are free (a heap), and groups in the order in which they were given out."""

    def __init__(self, rests: list[list[Unit]], free: list[tuple[float, int]]) -> None:
        self.rests, self.free, self.groups = rests, free, list[SequenceGroup]()
        self.filled: set[tuple[int, ...]] = set()
        single = (unit for rest in rests for unit in rest if unit.degree == 1)
        self.singles = sorted((unit.seconds, unit.sequences, unit.offload) for unit in single)

    def next(self) -> Unit | None:
        """The unit that the rank which is free first takes."""
        own = self.free[0][1] * len(self.rests) // len(self.free)
        for rest in (self.rests[own], *self.rests):
            while rest:
                unit = rest.pop()
                if unit.sequences not in self.filled:
                    return unit
        return None

    def give(self, unit: Unit, ranks: list[int], end_s: float) -> None:
        """The unit to these ranks, which are free again then."""
        if unit.degree == 1:
            del self.singles[bisect_left(self.singles, (unit.seconds, unit.sequences))]
        self.groups.append(SequenceGroup(tuple(sorted(ranks)), unit.sequences, unit.offload))
        for rank in ranks:
            heapq.heappush(self.free, (end_s, rank))

    def fill(self, rank: int, gap_s: float) -> None:
        """A rank that waits takes the longest that fits, and again."""
        while place := bisect_left(self.singles, (gap_s,)):
            seconds, sequences, offload = self.singles.pop(place - 1)
            self.filled.add(sequences)
            self.groups.append(SequenceGroup((rank,), sequences, offload))
            gap_s -= seconds
