"""Workload: what one training step works on: sequences, their length, and how lengths are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.bound.bound import MOST_SEQUENCES, MOST_TOKENS, check_most
from meshwright.specs.error import SpecError
from meshwright.specs.sequence.drawn_rows import attended_length

SHARE_TOLERANCE = 1e-9  # shares of lengths are written by hand and need not sum to one to the last bit


@dataclass(frozen=True)
class Workload:
    """`global_batch` sequences of `sequence_length` tokens for each step.

    `lengths`: of the documents in them, a distribution as pairs (tokens, share) whose shares sum to one. Documents are packed
    one behind the other, cut where a sequence ends, and attention stays within a document; empty: every sequence is one
    text. `num_tokens` is what the whole training reads, or None where that is open. `expert_load`: rows that experts of the
    busiest device of an expert-parallel group get, over an even share, mean of the layers, as a routing trace says it (1:
    balanced; less where a capacity drops choices of all experts). Raises SpecError on numbers that cannot be.
    """

    global_batch: int
    sequence_length: int
    lengths: tuple[tuple[int, float], ...] = ()
    num_tokens: int | None = None
    expert_load: float = 1.0

    def __post_init__(self) -> None:
        for field in ("global_batch", "sequence_length", "num_tokens"):
            value = getattr(self, field)
            is_open = field == "num_tokens" and value is None
            if not is_open and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SpecError(f"workload: {field} is {value!r}", allowed="a whole number from 1")
        for field, most in (("global_batch", MOST_SEQUENCES), ("sequence_length", MOST_TOKENS)):
            check_most(f"workload: {field}", getattr(self, field), most)
        for length, share in self.lengths:
            if not 1 <= length <= MOST_TOKENS or not 0 <= share <= 1:
                raise SpecError(
                    f"workload: a share of {share!r} with {length!r} tokens",
                    allowed=f"lengths from 1 to {MOST_TOKENS}, shares from 0 to 1",
                )
        if not 0.0 < self.expert_load < math.inf:
            raise SpecError(
                f"workload: expert_load is {self.expert_load!r}",
                allowed="a number above 0; 1 is balanced, less is where choices are dropped",
            )
        total = math.fsum(share for _, share in self.lengths)
        if self.lengths and abs(total - 1) > SHARE_TOLERANCE:
            raise SpecError(f"workload: shares of lengths sum to {total:g}", allowed="shares that sum to 1")

    @property
    def mean_length(self) -> float:
        """Expected tokens of one document."""
        if not self.lengths:
            return float(self.sequence_length)
        return math.fsum(length * share for length, share in self.lengths)

    @property
    def attended_length(self) -> float:
        """Tokens of the document in which a token is in the mean: attention sees half as many keys."""
        if not self.lengths:
            return float(self.sequence_length)
        return attended_length(self.lengths, self.sequence_length)

    @property
    def document_length(self) -> int:
        """Tokens of documents, all alike and a whole part of a sequence, in which attention sees at most as many keys as it
        does in the workload's; 0 where a sequence is one text."""
        whole, length = self.sequence_length, self.attended_length
        if len(self.lengths) == 1:
            return 0 if length >= whole else int(length)
        found = whole // math.ceil(whole / length)
        return 0 if found >= whole else max(1, found)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step: sequences are full, whatever documents are in them."""
        return self.global_batch * self.sequence_length

    @property
    def num_steps(self) -> int | None:
        """Steps that read `num_tokens`, the last one perhaps partly; None where that is open."""
        return None if self.num_tokens is None else math.ceil(self.num_tokens / self.tokens_per_step)
