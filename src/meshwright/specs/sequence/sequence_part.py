"""Where the tokens of a sequence are, when the devices of a context-parallel group divide it among themselves.

contiguous   rank r of P has the r-th of P equal runs. A causal token sees all before it, so the last rank does 2 - 1/P
             times the mean work (Liu et al. 2023, arXiv 2310.01889).
zigzag       of 2P equal runs rank r has r and 2P - 1 - r: every rank does the same work (Llama 3, arXiv 2407.21783,
             section 3.3.2).
stripe       rank r has every P-th token from r on. Of the keys of ranks up to its own a query sees as many as there are
             queries up to it, of those of later ranks one less: all ranks do the same work but for these (Brandon et al.
             2023, arXiv 2311.09431).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Literal

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.packed_part import PackedPart

Arrangement = Literal["contiguous", "zigzag", "stripe"]
ARRANGEMENTS: tuple[Arrangement, ...] = ("contiguous", "zigzag", "stripe")


@dataclass(frozen=True)
class SequencePart:
    """The tokens of rank `rank` of `degree`, of sequences of `sequence_length` tokens; by default all of them.

    ``ulysses``: so many neighbouring ranks have equal pieces, one behind the other, of what one rank of fewer would have
    (`ring`), which they gather of some heads each (Fang and Zhao 2024, arXiv 2405.07719).

    Raises PlanError for a rank that is not there, an unknown arrangement, or a length that does not divide.
    """

    sequence_length: int
    degree: int = 1
    rank: int = 0
    arrangement: Arrangement = "contiguous"
    ulysses: int = 1

    def __post_init__(self) -> None:
        if self.arrangement not in ARRANGEMENTS:
            raise PlanError(f"arrangement is {self.arrangement!r}", allowed=" or ".join(ARRANGEMENTS))
        if not 0 <= self.rank < self.degree:
            raise PlanError(
                f"rank {self.rank} of a context-parallel degree of {self.degree}",
                allowed=f"0 to {self.degree - 1}",
            )
        if self.ulysses < 1 or self.degree % self.ulysses:
            raise PlanError(
                f"groups of {self.ulysses} ranks in a context-parallel degree of {self.degree}",
                allowed=f"a number that divides {self.degree}",
            )
        step = num_runs(self.degree, self.arrangement, self.ulysses)
        if self.sequence_length < 1 or self.sequence_length % step:
            raise PlanError(
                f"a sequence of {self.sequence_length} tokens over cp({self.degree}), {self.arrangement}",
                allowed=f"a multiple of {step}",
                next=f"take {max(1, self.sequence_length // step) * step} tokens, or another cp",
            )

    @property
    def num_tokens(self) -> int:
        """Tokens of this rank, the same for all."""
        return self.sequence_length // self.degree

    @property
    def runs(self) -> tuple[range, ...]:
        """Places in the sequence of this rank's tokens, in the order in which it has them: they rise."""
        if self.ulysses > 1:
            low = self.rank % self.ulysses * self.num_tokens
            return _piece(self.ring.runs, low, low + self.num_tokens)
        if self.arrangement == "stripe":
            return (range(self.rank, self.sequence_length, self.degree),)
        count = num_runs(self.degree, self.arrangement)
        size = self.sequence_length // count
        own = (self.rank,) if count == self.degree else (self.rank, count - 1 - self.rank)
        return tuple(range(run * size, (run + 1) * size) for run in own)

    @property
    def whole(self) -> SequencePart:
        """All tokens of the sequence, in order."""
        return SequencePart(self.sequence_length)

    @property
    def ring(self) -> SequencePart:
        """What the neighbours of a group have together: the tokens of a rank of a ring of groups."""
        return replace(self, degree=self.degree // self.ulysses, rank=self.rank // self.ulysses, ulysses=1)

    @property
    def neighbours(self) -> tuple[SequencePart, ...]:
        """What each rank of its group has, in the order of the ranks."""
        first = self.rank - self.rank % self.ulysses
        return tuple(self.of_rank(rank) for rank in range(first, first + self.ulysses))

    def of_rank(self, rank: int) -> SequencePart:
        """What another rank has."""
        return replace(self, rank=rank)

    def source(self, step: int) -> SequencePart:
        """Whose keys and values this rank has at a step of a ring that sends to the next rank: its own at step 0."""
        return self.of_rank((self.rank - step) % self.degree)


def _piece(runs: tuple[range, ...], low: int, high: int) -> tuple[range, ...]:
    """Of runs one behind the other the elements from `low` to `high`."""
    found = []
    for run in runs:
        own = run[max(0, low) : max(0, high)]
        low, high = low - len(run), high - len(run)
        found += [own] if own else []
    return tuple(found)


@dataclass(frozen=True)
class SequenceRun:
    """Neighbouring tokens of sequences of `sequence_length` tokens: ``num_tokens`` behind the first ``num_earlier``,
    a chunk of them (`token_part`)."""

    sequence_length: int
    num_tokens: int
    num_earlier: int = 0

    @property
    def runs(self) -> tuple[range, ...]:
        """Their places in the sequence."""
        return (range(self.num_earlier, self.num_earlier + self.num_tokens),)


OwnTokens = SequencePart | SequenceRun | PackedPart  # which tokens of its sequences a device has, or works on
RingPart = SequencePart | PackedPart  # of a device of several, among which keys and values travel


def num_runs(degree: int, arrangement: Arrangement, ulysses: int = 1) -> int:
    """Equal runs that a sequence is cut into; its length is a multiple of it."""
    ring = degree // ulysses
    return lcm(degree, 2 * ring) if arrangement == "zigzag" and ring > 1 else degree


def attended_pairs_of(runs: tuple[range, ...], window: int = 0) -> float:
    """Pairs of a query at one of these places and a key that it sees; with a window, its last `window` keys."""
    found = 0
    for run in runs:
        near = run[: len(range(run.start, min(run.stop, window), run.step))] if window else run
        # a query at place n sees n + 1 keys
        found += len(near) * (near[0] + near[-1] + 2) // 2 if near else 0
        found += (len(run) - len(near)) * window
    return float(found)


@lru_cache(maxsize=1024)
def most_attended_pairs(part: SequencePart, window: int = 0) -> float:
    """Pairs of the rank that has most of them: the others wait for it."""
    return max(attended_pairs_of(part.of_rank(rank).runs, window) for rank in range(part.degree))


def work_ratio(part: SequencePart, window: int = 0) -> float:
    """Pairs of the rank that has most of them, by the mean: contiguous 2 - 1/P, zigzag 1, stripe nearly."""
    return most_attended_pairs(part, window) * part.degree / attended_pairs_of(part.whole.runs, window)
