"""Workload: what one training step works on: sequences, their length, and how lengths are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.bound.bound import MOST_SEQUENCES, MOST_TOKENS, check_most
from meshwright.specs.error import SpecError

SHARE_TOLERANCE = 1e-9  # shares of lengths are written by hand and need not sum to one to the last bit


@dataclass(frozen=True)
class Workload:
    """`global_batch` sequences of at most `sequence_length` tokens for each step.

    `lengths` is a distribution of lengths as pairs (tokens, share) whose shares sum to one; empty means that
    every sequence is full. `num_tokens` is what the whole training reads, or None where that is open.
    Raises SpecError on numbers that cannot be.
    """

    global_batch: int
    sequence_length: int
    lengths: tuple[tuple[int, float], ...] = ()
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        for field in ("global_batch", "sequence_length", "num_tokens"):
            value = getattr(self, field)
            is_open = field == "num_tokens" and value is None
            if not is_open and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SpecError(f"workload: {field} is {value!r}", allowed="a whole number from 1")
        for field, most in (("global_batch", MOST_SEQUENCES), ("sequence_length", MOST_TOKENS)):
            check_most(f"workload: {field}", getattr(self, field), most)
        for length, share in self.lengths:
            if not 1 <= length <= self.sequence_length or not 0 <= share <= 1:
                raise SpecError(
                    f"workload: a share of {share!r} with {length!r} tokens",
                    allowed=f"lengths from 1 to {self.sequence_length}, shares from 0 to 1",
                )
        total = math.fsum(share for _, share in self.lengths)
        if self.lengths and abs(total - 1) > SHARE_TOLERANCE:
            raise SpecError(f"workload: shares of lengths sum to {total:g}", allowed="shares that sum to 1")

    @property
    def mean_length(self) -> float:
        """Expected tokens of one sequence."""
        if not self.lengths:
            return float(self.sequence_length)
        return math.fsum(length * share for length, share in self.lengths)

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of one step."""
        return self.global_batch * self.mean_length

    @property
    def num_steps(self) -> int | None:
        """Steps that read `num_tokens`, the last one perhaps partly; None where that is open."""
        return None if self.num_tokens is None else math.ceil(self.num_tokens / self.tokens_per_step)
