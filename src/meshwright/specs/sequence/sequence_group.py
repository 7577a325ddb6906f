"""GroupedBatch: which ranks share which sequences of a step.

A group is some ranks that attend to each other's tokens: its sequences are packed one behind the other, and each is cut over
all of its ranks. Groups stand in one order, and every rank runs its own ones in that order, so what they send each other
cannot wait in a circle, whatever the groups are (Ge et al. 2025, ByteScale, arXiv 2502.21231).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.packed_part import PackedPart, parts_of_ranks
from meshwright.specs.sequence.sequence_costs import SequenceCosts


class SequenceGroup(NamedTuple):
    """Ranks, by their numbers, that share sequences, by their numbers in the batch, in this order.

    `offload`: of what the forward keeps for the backward and may wait in the memory of the host, the share that does.
    """

    ranks: tuple[int, ...]
    sequences: tuple[int, ...]
    offload: float = 0.0

    @property
    def degree(self) -> int:
        """How many ranks share each of its sequences."""
        return len(self.ranks)


class GroupMicrobatch(NamedTuple):
    """What one rank has of one group: `group` by its number among the batch's, -1 where a rank is in none and has a token of
    padding instead; its `rank`; and which tokens of which sequences these are."""

    group: int
    rank: int
    sequences: tuple[int, ...]
    part: PackedPart


IDLE = PackedPart((1,))  # of a rank without a sequence


@dataclass(frozen=True)
class GroupedBatch:
    """A step's sequences of `lengths` tokens over `num_ranks` ranks: every sequence in one of `groups`.

    Raises PlanError for a sequence in none or several groups, and for a group without sequences or ranks, or with a rank that
    is not there or there twice.
    """

    lengths: tuple[int, ...]
    num_ranks: int
    groups: tuple[SequenceGroup, ...]

    def __post_init__(self) -> None:
        for length in self.lengths:
            if length < 1:
                raise PlanError(f"a sequence of {length} tokens", allowed="at least one")
        for group in self.groups:
            self._check_group(group)
        placed = sorted(number for group in self.groups for number in group.sequences)
        if placed != list(range(len(self.lengths))):
            wrong = sorted(set(range(len(self.lengths))).symmetric_difference(placed))
            wrong = wrong or [one for one, other in zip(placed, placed[1:], strict=False) if one == other]
            raise PlanError(
                f"sequence {wrong[0]} of {len(self.lengths)} is in {placed.count(wrong[0])} groups",
                allowed="every sequence of the step in one group",
            )

    def _check_group(self, group: SequenceGroup) -> None:
        is_there = all(0 <= rank < self.num_ranks for rank in group.ranks)
        if not group.ranks or not is_there or len(set(group.ranks)) < len(group.ranks):
            raise PlanError(
                f"a group of the ranks {list(group.ranks)}",
                allowed=f"one or more different ranks from 0 to {self.num_ranks - 1}",
            )
        if not group.sequences:
            raise PlanError(
                f"the group of the ranks {list(group.ranks)} has no sequences",
                allowed="at least one",
                next="leave it out",
            )
        if not 0 <= group.offload <= 1:
            raise PlanError(
                f"the group of the ranks {list(group.ranks)} offloads {group.offload:g} of what it keeps",
                allowed="a share from 0 to 1",
            )

    @cached_property
    def microbatches(self) -> tuple[GroupMicrobatch, ...]:
        """What every rank has of every group: those of a group follow each other as its ranks do, groups as they stand here.
        Behind them one for every rank that is in no group: it holds the same parameters, and adds nothing to their sums."""
        found = [
            GroupMicrobatch(number, rank, group.sequences, part)
            for number, group in enumerate(self.groups)
            for rank, part in zip(
                group.ranks, parts_of_ranks(self.group_lengths(group), group.degree), strict=True
            )
        ]
        idle = (rank for rank, own in enumerate(self.of_rank) if not own)
        return (*found, *(GroupMicrobatch(-1, rank, (), IDLE) for rank in idle))

    def weight(self, microbatch: GroupMicrobatch) -> float:
        """What a microbatch weighs in the mean over all tokens of the step: its share of them."""
        return microbatch.part.num_real_tokens / self.num_tokens if microbatch.sequences else 0.0

    @property
    def most_degree(self) -> int:
        """Ranks of the largest group."""
        return max(group.degree for group in self.groups)

    @property
    def words(self) -> str:
        """How many groups of how many ranks, the largest first: 1x4 6x1."""
        counted = Counter(group.degree for group in self.groups)
        return " ".join(f"{counted[degree]}x{degree}" for degree in sorted(counted, reverse=True))

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(self.lengths)

    def group_lengths(self, group: SequenceGroup) -> tuple[int, ...]:
        """Tokens of every sequence of a group."""
        return tuple(self.lengths[number] for number in group.sequences)

    @cached_property
    def of_rank(self) -> tuple[tuple[int, ...], ...]:
        """Of every rank the numbers of its groups, in the order in which it runs them."""
        found: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for number, group in enumerate(self.groups):
            for rank in group.ranks:
                found[rank].append(number)
        return tuple(map(tuple, found))


class SequenceGrouping(Protocol):
    """Decides the groups of a step; a filler of the slot ``sequence_groups`` is called so."""

    def __call__(self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> GroupedBatch:
        """Groups of all sequences over ranks 0 to num_ranks - 1. Raises PlanError where they do not fit."""
        ...
