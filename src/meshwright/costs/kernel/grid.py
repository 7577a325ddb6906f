"""CorrectionGrid: a small table over logarithms of sizes, read by multilinear interpolation, flat beyond its ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.kernel.chip import FloatArray


def corners(nodes: tuple[tuple[float, ...], ...], points: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Which table entries surround each point, and their weights.

    Args:
        nodes: one rising tuple of positions a dimension, D of them, two or more each.
        points: [R, D]; beyond the ends the end counts.

    Returns:
        indices [R, 2^D] into the flattened table, and weights [R, 2^D] that sum to one.
    """
    indices, weights = np.zeros((len(points), 1), dtype=np.int64), np.ones((len(points), 1))
    for axis, positions in enumerate(nodes):
        grid = np.asarray(positions)
        # minimum and maximum rather than clip, whose wrappers take longer than a single point does
        inside = np.minimum(np.maximum(points[:, axis], grid[0]), grid[-1])
        low = np.minimum(np.maximum(np.searchsorted(grid, inside, side="right") - 1, 0), len(grid) - 2)
        share = (inside - grid[low]) / (grid[low + 1] - grid[low])
        sides = (np.stack([low, low + 1], axis=1), np.stack([1.0 - share, share], axis=1))
        shape = (len(points), 2 * indices.shape[1])  # every corner so far has one on either side of this axis
        indices = (indices[:, :, None] * len(grid) + sides[0][:, None]).reshape(shape)
        weights = (weights[:, :, None] * sides[1][:, None]).reshape(shape)
    return indices, weights


@dataclass(frozen=True)
class CorrectionGrid:
    """Natural logarithms of a factor on seconds, at the nodes of a table; `values` in row-major order."""

    nodes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    @cached_property
    def _table(self) -> FloatArray:
        return np.asarray(self.values, dtype=np.float64)

    def factor(self, points: FloatArray) -> FloatArray:
        """The factor [R] at points [R, D]."""
        indices, weights = corners(self.nodes, points)
        return np.asarray(np.exp((self._table[indices] * weights).sum(axis=1)))
