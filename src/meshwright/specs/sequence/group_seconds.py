"""What a grouping costs: the seconds of every rank, with and without waiting for others, and tokens that go around."""

from __future__ import annotations

from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch


def busy_seconds(batch: GroupedBatch, costs: SequenceCosts) -> list[float]:
    """Of every rank the seconds of its groups."""
    found = [0.0] * batch.num_ranks
    for group in batch.groups:
        group_s = costs.seconds(batch.group_lengths(group), group.degree, group.offload)
        for rank in group.ranks:
            found[rank] += group_s
    return found


def finish_seconds(batch: GroupedBatch, costs: SequenceCosts) -> list[float]:
    """Of every rank when it ends its last group, where a group begins when the last of its ranks is free."""
    found = [0.0] * batch.num_ranks
    for group in batch.groups:
        group_s = costs.seconds(batch.group_lengths(group), group.degree, group.offload)
        end_s = max(found[rank] for rank in group.ranks) + group_s
        for rank in group.ranks:
            found[rank] = end_s
    return found


def imbalance(seconds: list[float]) -> float:
    """The longest over the mean; 1 of nothing."""
    return max(seconds) * len(seconds) / sum(seconds) if sum(seconds) else 1.0


def circulated_tokens(batch: GroupedBatch) -> int:
    """Tokens that come to a rank from others of its groups, in one turn of a ring: of d ranks d - 1 get each."""
    return sum((group.degree - 1) * sum(batch.group_lengths(group)) for group in batch.groups)
