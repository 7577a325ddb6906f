"""Where the tokens of a sequence are, when the devices of a context-parallel group divide it among themselves.

contiguous   rank r of P has the r-th of P equal runs. A causal token sees all before it, so the last rank does 2 - 1/P
             times the mean work (Liu et al. 2023, arXiv 2310.01889).
zigzag       of 2P equal runs rank r has r and 2P - 1 - r: every rank does the same work (Llama 3, arXiv 2407.21783,
             section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.specs.error import PlanError
from meshwright.specs.model.shape import ModelShape

Arrangement = Literal["contiguous", "zigzag"]
ARRANGEMENTS: tuple[Arrangement, ...] = ("contiguous", "zigzag")
Context = Literal["ring", "ring_contiguous", "all_gather", "ulysses"]
# How each kind of context parallelism arranges tokens. Behind Ulysses' exchange every device has the whole sequence of some
# heads, so all do the same work as it is.
ARRANGEMENT_OF: Mapping[Context, Arrangement] = {
    "ring": "zigzag", "ring_contiguous": "contiguous", "all_gather": "zigzag", "ulysses": "contiguous",
}  # fmt: skip
CONTEXTS: tuple[Context, ...] = tuple(ARRANGEMENT_OF)
CONTIGUOUS_RING: Context = "ring_contiguous"  # causal attention is not balanced
RINGS: tuple[Context, ...] = ("ring", CONTIGUOUS_RING)  # in which keys and values travel


@dataclass(frozen=True)
class SequencePart:
    """The tokens of rank `rank` of `degree`, of sequences of `sequence_length` tokens; by default all of them.

    Raises PlanError for a rank that is not there, an unknown arrangement, or a length that does not divide.
    """

    sequence_length: int
    degree: int = 1
    rank: int = 0
    arrangement: Arrangement = "contiguous"

    def __post_init__(self) -> None:
        if self.arrangement not in ARRANGEMENTS:
            raise PlanError(f"arrangement is {self.arrangement!r}", allowed=" or ".join(ARRANGEMENTS))
        if not 0 <= self.rank < self.degree:
            raise PlanError(
                f"rank {self.rank} of a context-parallel degree of {self.degree}",
                allowed=f"0 to {self.degree - 1}",
            )
        step = num_runs(self.degree, self.arrangement)
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
        count = num_runs(self.degree, self.arrangement)
        size = self.sequence_length // count
        own = (self.rank,) if count == self.degree else (self.rank, count - 1 - self.rank)
        return tuple(range(run * size, (run + 1) * size) for run in own)

    @property
    def whole(self) -> SequencePart:
        """All tokens of the sequence, in order."""
        return SequencePart(self.sequence_length)

    def of_rank(self, rank: int) -> SequencePart:
        """What another rank has."""
        return replace(self, rank=rank)

    def source(self, step: int) -> SequencePart:
        """Whose keys and values this rank has at a step of a ring that sends to the next rank: its own at step 0."""
        return self.of_rank((self.rank - step) % self.degree)


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


OwnTokens = SequencePart | SequenceRun  # which tokens of its sequences a device has, or works on


def num_runs(degree: int, arrangement: Arrangement) -> int:
    """Equal runs that a sequence is cut into; its length is a multiple of it."""
    return 2 * degree if arrangement == "zigzag" and degree > 1 else degree


def repeats_of_key(num_heads: int, num_kv_heads: int, degree: int) -> int:
    """How often Ulysses over `degree` ranks repeats each key-value head, so that every rank has one; 1: there are enough.

    Raises PlanError where the ranks do not divide the query heads, or neither they nor the key-value heads divide the other.
    """
    if num_heads % degree or (num_kv_heads % degree and degree % num_kv_heads):
        raise PlanError(
            f"context ulysses gives cp({degree}) ranks {num_heads} query and {num_kv_heads} key-value heads of a device",
            allowed="a degree that divides the query heads, and divides the key-value heads or is a multiple of them",
            next="take another cp, or context ring, which divides no heads",
        )
    return max(1, degree // num_kv_heads)


def check_heads(model: ModelShape, tp: int, cp: int) -> None:
    """Raise PlanError where Ulysses over `cp` ranks cannot divide the heads of a device of `tp` in every block."""
    for block in model.kinds:
        repeats_of_key(block.attention.num_heads // tp, block.attention.num_kv_heads // tp, cp)


def divides_heads(model: ModelShape, tp: int, cp: int) -> bool:
    """Can Ulysses divide the model's heads so?"""
    try:
        check_heads(model, tp, cp)
    except PlanError:
        return False
    return True
