"""PackedPart: which tokens of sequences that are packed one behind the other a rank of their group has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from meshwright.specs.error import PlanError


def num_runs(degree: int) -> int:
    """Equal runs of every sequence: two for each of several ranks, in a zigzag, so that all do the same work."""
    return 2 * degree if degree > 1 else 1


def padded_length(length: int, degree: int) -> int:
    """Tokens of a sequence with the padding behind it, so that `degree` ranks have equal runs of it; alone it needs none."""
    return -(-length // num_runs(degree)) * num_runs(degree)


@dataclass(frozen=True)
class PackedPart:
    """The tokens of rank `rank` of `degree`, of sequences of these `lengths`, which are packed one behind the other, each
    with padding behind it up to `padded_length`; places count over all of that. Padding has no targets.

    Raises PlanError for a rank that is not there, and where there are no sequences.
    """

    lengths: tuple[int, ...]
    degree: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or not 0 <= self.rank < self.degree:
            raise PlanError(
                f"rank {self.rank} of {self.degree} with {len(self.lengths)} sequences",
                allowed=f"a rank from 0 to {self.degree - 1}, and one sequence or more",
            )

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Where every sequence begins; behind the last stands where its padding ends."""
        return tuple(accumulate((padded_length(each, self.degree) for each in self.lengths), initial=0))

    @property
    def sequence_length(self) -> int:
        """Places of all sequences together."""
        return self.firsts[-1]

    @property
    def num_tokens(self) -> int:
        """Tokens of this rank, padding among them; the same for all ranks."""
        return self.sequence_length // self.degree

    @property
    def num_positions(self) -> int:
        """At least as many positions as its longest sequence has, a power of two: tables of them are few."""
        return int(2 ** (max(self.lengths) - 1).bit_length())

    @cached_property
    def runs(self) -> tuple[range, ...]:
        """Places of this rank's tokens, in the order in which it has them: they rise."""
        return tuple(
            run for number in range(len(self.lengths)) for run in self._runs(number, self.firsts[number])
        )

    @property
    def num_real_tokens(self) -> int:
        """Tokens of this rank that are no padding."""
        return sum(
            max(0, min(run.stop, length) - run.start)
            for number, length in enumerate(self.lengths)
            for run in self._runs(number, 0)
        )

    def _runs(self, number: int, first: int) -> Iterator[range]:
        """What the rank has of one of the sequences, which begins at `first`."""
        count = num_runs(self.degree)
        size = padded_length(self.lengths[number], self.degree) // count
        own = (self.rank, count - 1 - self.rank) if self.degree > 1 else (0,)
        yield from (range(first + run * size, first + (run + 1) * size) for run in own)

    @cached_property
    def sequences(self) -> tuple[tuple[int, PackedPart], ...]:
        """Of every sequence how many tokens of this rank stand before its own, and which its own are of it alone."""
        return tuple(
            (first // self.degree, PackedPart((length,), self.degree, self.rank))
            for first, length in zip(self.firsts, self.lengths, strict=False)
        )

    @property
    def whole(self) -> PackedPart:
        """All tokens, in order, where these are packed so."""
        return PackedPart(tuple(padded_length(each, self.degree) for each in self.lengths))

    @property
    def ring(self) -> PackedPart:
        """Itself: no neighbours exchange heads in a group."""
        return self

    def of_rank(self, rank: int) -> PackedPart:
        """What another rank has."""
        return replace(self, rank=rank)

    def source(self, step: int) -> PackedPart:
        """Whose keys and values this rank has at a step of a ring that sends to the next rank: its own at step 0."""
        return self.of_rank((self.rank - step) % self.degree)


def parts_of_ranks(lengths: Sequence[int], degree: int) -> tuple[PackedPart, ...]:
    """What every rank of a group has of its sequences."""
    return tuple(PackedPart(tuple(lengths), degree, rank) for rank in range(degree))
