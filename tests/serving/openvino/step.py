"""Steps of a runner written by hand: which tokens of which sequences, and where their blocks are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.engine.runner import Runner, StepInputs


class Piece(NamedTuple):
    """Consecutive tokens of one sequence, behind `past` others, with all blocks of the sequence."""

    tokens: Sequence[int]
    past: int
    blocks: Sequence[int]


def step_inputs(pieces: Sequence[Piece], block_tokens: int, all_rows: bool = False) -> StepInputs:
    """The inputs for these; asked is each one's last row, or every row."""
    lengths = [len(piece.tokens) for piece in pieces]
    held = [piece.blocks[: -(-(piece.past + n) // block_tokens)] for piece, n in zip(pieces, lengths)]
    starts = np.cumsum([0, *lengths])
    return StepInputs(
        token_ids=np.concatenate([np.asarray(piece.tokens, np.int64) for piece in pieces]),
        positions=np.concatenate(
            [np.arange(piece.past, piece.past + n) for piece, n in zip(pieces, lengths)]
        ),
        query_starts=starts.astype(np.int32),
        past_lengths=np.asarray([piece.past for piece in pieces], np.int32),
        block_ids=np.concatenate(held).astype(np.int32),
        block_starts=np.cumsum([0, *map(len, held)]).astype(np.int32),
        max_context=max(piece.past + n for piece, n in zip(pieces, lengths)),
        rows=np.arange(starts[-1]) if all_rows else starts[1:] - 1,
    )


def logits_of(runner: Runner, *pieces: Piece, all_rows: bool = False) -> NDArray[np.float32]:
    """What the runner computes for these, copied."""
    return runner.forward(step_inputs(pieces, runner.block_tokens, all_rows)).copy()
