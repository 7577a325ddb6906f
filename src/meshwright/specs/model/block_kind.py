"""What kinds of blocks one model has, and what a window leaves of causal attention."""

from __future__ import annotations

from typing import NamedTuple


class BlockKind(NamedTuple):
    """What tells the blocks of one model apart: experts or one MLP, the window (0: attention sees all), and the parameters
    that train, such as "qkv.weight" (None: all).
    """

    has_experts: bool
    window: int
    trained: tuple[str, ...] | None = None


def attended_pairs(sequence_length: int, window: int = 0) -> float:
    """Pairs of a query and a key it sees in one causal sequence; with a window, its last `window` keys."""
    seen = sequence_length if window == 0 else min(window, sequence_length)
    return seen * (seen + 1) / 2 + (sequence_length - seen) * seen
