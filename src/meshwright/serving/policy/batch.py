"""A batch: what one step computes, for whom, and which blocks move before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.serving.policy.sequence import Sequence


class Chunk(NamedTuple):
    """Tokens `start` to `start + num_tokens` of a sequence's prompt (or of all it had when it was preempted)."""

    sequence: Sequence
    start: int
    num_tokens: int
    is_last: bool  # does a token come out behind it?


@dataclass(eq=False, slots=True)
class Batch:
    """One step.

    Args:
        number: counts the batches of a scheduler.
        lane: which of the groups that are in flight beside each other.
        chunks: of prompts.
        decodes: sequences that compute their last token and get one more, in the order of their admission.
        decode_context: tokens of all decodes' sequences together, the one computed among them.
        repeats: so many steps in a row may run as this one does, but that contexts grow, before a policy has to be asked.
        swap_out, swap_in, copies: pairs of blocks (from, to), moved in this order before the step.
        preempted: who had to leave for it.
        num_prefill_tokens: tokens of prompts that it computes.
        num_proposed: tokens that may be proposed to each that decodes, and are computed in this step; it has blocks for them.
    """

    number: int
    lane: int
    chunks: list[Chunk] = field(default_factory=list)
    decodes: tuple[Sequence, ...] = ()
    decode_context: int = 0
    repeats: int = 1
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    num_prefill_tokens: int = 0
    num_proposed: int = 0

    @property
    def num_decodes(self) -> int:
        """Sequences that compute one token each, and what is proposed behind it."""
        return len(self.decodes)

    @property
    def num_tokens(self) -> int:
        """Tokens that it computes, at most: a decoder may propose fewer than it has room for."""
        return self.num_prefill_tokens + self.num_decodes * (1 + self.num_proposed)
