"""FlexSp: groups of neighbouring ranks for a step's sequences, of degrees that suit their lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.sequence.degree_price import DegreePrice
from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.lower_bound import lower_bound_s
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.specs.sequence.static_groups import StaticGroups
from meshwright.systems.sequence.flex_sp.bucket import Cuts
from meshwright.systems.sequence.flex_sp.layout import Packed, Packing
from meshwright.systems.sequence.flex_sp.running import running_groups
from meshwright.systems.sequence.flex_sp.solver import solved


@dataclass(frozen=True)
class FlexSp:
    """Groups of powers of two neighbouring ranks, chosen for the lengths of a step (Wang et al. 2025, FlexSP).

    With `lockstep` as the paper has it: micro-batches of neighbouring lengths, each over a layout of its own, which all ranks
    end together; the number of them that is best by the costs. Else ranks go on to their next group by themselves, and every
    sequence is where it takes the fewest seconds of ranks and still ends in time; or all groups are alike, where that ends
    first.
    """

    lockstep: bool = option(
        False, "End micro-batches together, as where all ranks fetch parameters for each (the paper)."
    )
    tries: int = option(
        5, "Numbers of micro-batches that are tried in lockstep, from the fewest that fit.", least=1
    )
    milp_s: float = option(
        0.0, "Seconds in which a MILP may improve each micro-batch in lockstep; 0: none.", least=0
    )
    buckets: int = option(16, "Lengths of a micro-batch that the MILP tells apart.", least=1)

    def __call__(self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> GroupedBatch:
        """Groups of a step. Raises PlanError where a sequence fits on no group."""
        prices = prices_of(lengths, num_ranks, costs)
        if self.lockstep:
            groups = groups_of(self._micro_batches(lengths, num_ranks, prices, costs), num_ranks)
            return GroupedBatch(tuple(lengths), num_ranks, groups)
        order, degrees = longest_first(lengths), [price.degree for price in prices]
        least_s = lower_bound_s(lengths, num_ranks, costs, degrees=degrees)
        groups = running_groups(lengths, order, num_ranks, prices, least_s)
        alike = (
            StaticGroups(price.degree)(lengths, num_ranks, costs)
            for price in prices
            if max(lengths) <= price.capacity and num_ranks % price.degree == 0
        )
        found = (GroupedBatch(tuple(lengths), num_ranks, groups), *alike)
        return min(found, key=lambda batch: max(finish_seconds(batch, costs)))

    def micro_batches(self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> list[Packed]:
        """Of a step in lockstep the groups and seconds of each micro-batch. Raises PlanError where a sequence fits on no
        group."""
        return self._micro_batches(lengths, num_ranks, prices_of(lengths, num_ranks, costs), costs)

    def _micro_batches(
        self, lengths: Sequence[int], num_ranks: int, prices: Sequence[DegreePrice], costs: SequenceCosts
    ) -> list[Packed]:
        order = longest_first(lengths)
        cuts = Cuts([lengths[number] for number in order])
        count = max(1, math.ceil(sum(lengths) / (num_ranks * costs.capacity_tokens) - 1e-9))
        best: list[Packed] = []
        best_s, tried = math.inf, 0
        while count <= len(lengths) and (tried < self.tries or not best):
            parts = [order[places.start : places.stop] for places in cuts.into(count)]
            found = packed_parts(lengths, parts, num_ranks, prices, best_s)
            if found:
                best, best_s = found, sum(packed.seconds for packed in found)
            count, tried = count + 1, tried + 1
        if not self.milp_s:
            return best
        return [self._solved(lengths, packed, num_ranks, prices) for packed in best]

    def _solved(
        self, lengths: Sequence[int], packed: Packed, num_ranks: int, prices: Sequence[DegreePrice]
    ) -> Packed:
        numbers = [number for load in packed.loads for number in load.members]
        numbers.sort(key=lambda number: (-lengths[number], number))
        return solved(
            lengths, numbers, num_ranks, prices, packed, num_buckets=self.buckets, limit_s=self.milp_s
        )


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Numbers of the sequences, the longest first."""
    return sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))


def packed_parts(
    lengths: Sequence[int], parts: Sequence[Sequence[int]], num_ranks: int, prices: Sequence[DegreePrice], most_s: float
) -> list[Packed]:  # fmt: skip
    """Every micro-batch over its layout; nothing where one does not fit, or together they take `most_s` or more."""
    found: list[Packed] = []
    for part in parts:
        packed = Packing(lengths, part, num_ranks, prices).best()
        if packed is None or sum(each.seconds for each in found) + packed.seconds >= most_s:
            return []
        found.append(packed)
    return found


def prices_of(lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> list[DegreePrice]:
    """Prices of the powers of two that there are ranks for, the smallest degree first. Raises PlanError where the longest
    sequence fits on none of them."""
    least = costs.least_degree(max(lengths))
    powers = (2**power for power in range(num_ranks.bit_length()))
    prices = [
        DegreePrice.of(costs, degree) for degree in powers if not costs.degrees or degree in costs.degrees
    ]
    if not prices or max(lengths) > prices[-1].capacity:
        raise PlanError(
            f"a sequence of {max(lengths):,} tokens needs {least} ranks, of {num_ranks}",
            allowed=f"up to {int(prices[-1].capacity) if prices else 0:,} tokens, on a power of two of these ranks",
            next="cut sequences shorter, or take more ranks",
        )
    return prices


def groups_of(parts: Sequence[Packed], num_ranks: int) -> tuple[SequenceGroup, ...]:
    """Groups of all micro-batches in their order, each on aligned ranks: of those that its micro-batch leaves the ones that
    were done first, so that little waits where nothing joins the micro-batches."""
    groups, done_s = [], [0.0] * num_ranks
    for packed in parts:
        is_free = [True] * num_ranks
        for load in sorted(packed.loads, key=lambda load: (-load.price.degree, -load.seconds)):
            degree = load.price.degree
            blocks = (range(first, first + degree) for first in range(0, num_ranks - degree + 1, degree))
            free = [block for block in blocks if all(is_free[rank] for rank in block)]
            ranks = min(free, key=lambda block: max(done_s[rank] for rank in block))
            end_s = max(done_s[rank] for rank in ranks) + load.seconds
            for rank in ranks:
                is_free[rank], done_s[rank] = False, end_s
            groups.append(SequenceGroup(tuple(ranks), tuple(load.members)))
    return tuple(groups)
