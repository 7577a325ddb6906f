"""A rank's memory curves in a file, one array a tier: written where it ran, read where its trace is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from meshwright.ir.trace import MemoryCurve


def write_curves(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Of every tier (seconds, bytes) from then on, in order of time."""
    arrays = {tier: np.array(points, dtype=np.float64).reshape(-1, 2) for tier, points in curves.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_curves(path: Path, rank: int) -> tuple[MemoryCurve, ...]:
    """What was written; none where nothing was measured."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {tier: file[tier] for tier in file.files}
    return tuple(
        MemoryCurve(rank, tier, curve[:, 0].copy(), curve[:, 1].copy()) for tier, curve in arrays.items()
    )
