"""A token of every row by one uniform number each: where the cumulative distribution passes it. Nothing is sorted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 128  # tokens whose weights are added before one of them is looked for
LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)  # below it a quotient of two float32 is no number
NO_TOKEN = -1


def drawn_by_inverse(
    logits: NDArray[np.float32], temperatures: NDArray[np.float32], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Token ids ``[G]`` from the softmax of logits over temperature; `NO_TOKEN` where the largest logit is not finite.

    A row's token is a function of that row alone, bit by bit.

    Args:
        logits: ``[G, V]``, which are overwritten.
        temperatures: ``[G]``, above 0.
        uniforms: ``[G]``, within [0, 1).
    """
    num_rows, vocabulary_size = logits.shape
    peaks = logits.max(axis=1)
    is_whole = np.isfinite(peaks)
    with np.errstate(invalid="ignore", over="ignore"):
        logits -= peaks[:, None]
        logits /= np.maximum(temperatures, np.float32(LEAST_TEMPERATURE))[:, None]
        weights = np.exp(logits, out=logits)
    weights[~is_whole] = 1.0
    num_blocks = vocabulary_size // BLOCK
    blocked = weights[:, : num_blocks * BLOCK].reshape(num_rows, num_blocks, BLOCK).sum(axis=2)
    rest = weights[:, num_blocks * BLOCK :].sum(axis=1, keepdims=True)
    blocks, residuals = _passed(np.concatenate([blocked, rest], axis=1), uniforms)
    token_ids = np.empty(num_rows, dtype=np.int64)
    for row, (block, residual) in enumerate(zip(blocks.tolist(), residuals.tolist(), strict=True)):
        inside = np.cumsum(weights[row, block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
        # What rounding leaves over the block's end belongs to its last token that has a weight.
        passed = min(residual, float(np.nextafter(inside[-1], 0.0)))
        token_ids[row] = block * BLOCK + int(np.searchsorted(inside, passed, side="right"))
    token_ids[~is_whole] = NO_TOKEN
    return token_ids


def drawn_of_few(ids: NDArray[np.int64], weights: NDArray[np.float64], uniform: float) -> int:
    """One of few tokens with these weights."""
    cumulative = np.cumsum(weights)
    return int(ids[np.searchsorted(cumulative, uniform * cumulative[-1], side="right")])


def _passed(
    sums: NDArray[np.float32], uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each row of ``[G, B]`` sums the first where a share `uniforms` of the total is passed, and what is left in it."""
    cumulative = np.cumsum(sums, axis=1, dtype=np.float64)
    targets = uniforms * cumulative[:, -1]
    first = np.count_nonzero(cumulative <= targets[:, None], axis=1)
    rows = np.arange(len(sums))
    return first, targets - (cumulative[rows, first] - sums[rows, first])
