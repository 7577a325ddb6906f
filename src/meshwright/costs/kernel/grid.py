"""CorrectionGrid: a small table over logarithms of sizes, read by multilinear interpolation, flat beyond its ends."""

from __future__ import annotations

import itertools
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
    lower, share = [], []
    for axis, positions in enumerate(nodes):
        grid = np.asarray(positions)
        inside = np.clip(points[:, axis], grid[0], grid[-1])
        low = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, len(grid) - 2)
        lower.append(low)
        share.append((inside - grid[low]) / (grid[low + 1] - grid[low]))
    sizes = tuple(len(positions) for positions in nodes)
    indices, weights = [], []
    for corner in itertools.product((0, 1), repeat=len(nodes)):
        places = tuple(low + up for low, up in zip(lower, corner, strict=True))
        indices.append(np.ravel_multi_index(places, sizes))
        parts = [part if up else 1.0 - part for part, up in zip(share, corner, strict=True)]
        weights.append(np.prod(parts, axis=0))
    return np.stack(indices, axis=1).astype(np.int64), np.stack(weights, axis=1)


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
