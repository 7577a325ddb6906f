"""The largest of many values, without sorting them all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_BLOCKS = 128  # fewer blocks let more values through to the sort, more take longer to rank


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest of ``[V]``, largest first, of equal ones the lower first. All, where there are fewer."""
    if count < 1:
        return np.empty(0, np.int64)
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    candidates = np.flatnonzero(values >= _floor(values, count))
    order = np.argsort(-values[candidates], kind="stable")[:count]
    return candidates[order]


def _floor(values: NDArray[np.float32], count: int) -> np.float32:
    """What at least `count` of the values reach: so many blocks of them have a maximum that does."""
    width = len(values) // max(2 * count, LEAST_BLOCKS)
    if width > 1:
        num_blocks = len(values) // width
        values = values[: num_blocks * width].reshape(num_blocks, width).max(axis=1)
    place = len(values) - count
    return np.float32(np.partition(values, place)[place])
