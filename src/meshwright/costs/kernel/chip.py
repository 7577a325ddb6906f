"""Chip and Formula: what the formulas of GPU kernels share; sizes from data sheets, constants with a meaning and a range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Columns = Mapping[str, FloatArray]  # size by name, each [R]: one number a row


@dataclass(frozen=True)
class Chip:
    """A GPU by its data sheet.

    Attributes:
        name: of the profile ("h100").
        num_sms: streaming multiprocessors that run thread blocks.
        flops_per_s: dense peak by number format (bfloat16, float8).
        memory_bytes_per_s: peak of the device memory.
        cache_bytes: level-2 cache.
        source: the document of these numbers.
    """

    name: str
    num_sms: int
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    cache_bytes: float
    source: str = ""


class ChipConstant(NamedTuple):
    """A fitted number: what it means, in which unit, and between which ends it can be physical."""

    name: str
    unit: str
    low: float
    high: float
    start: float
    meaning: str


class Formula(NamedTuple):
    """Seconds of one kind of kernel from its sizes.

    `seconds(constants, chip, columns)` gives [R] seconds. `place(columns)` gives [R, D] base-2 logarithms at which
    the correction table is read, whose nodes are `nodes` (one rising tuple a dimension). `columns` also holds the
    row's `peak` (FLOP/s of its number format) and `element_bytes`.
    """

    name: str
    sizes: tuple[str, ...]
    constants: tuple[ChipConstant, ...]
    seconds: Callable[[Mapping[str, float], Chip, Columns], FloatArray]
    place: Callable[[Columns], FloatArray]
    nodes: tuple[tuple[float, ...], ...]


# The constants that every kind has.
LAUNCH = ChipConstant("launch_s", "s", 1e-6, 1e-4, 5e-6, "least time of the call: launches and their gaps")
COMPUTE = ChipConstant(
    "compute_efficiency", "1", 0.1, 1.0, 0.7, "share of the peak rate inside the main loop"
)
MEMORY = ChipConstant("memory_efficiency", "1", 0.3, 1.0, 0.8, "share of the memory's peak bandwidth")
TILE = ChipConstant(
    "tile_overhead_s", "s", 5e-8, 1e-5, 1e-6, "start and end of one tile: pipeline fill, epilogue"
)
SHARPNESS = ChipConstant(
    "sharpness", "1", 1.0, 12.0, 3.0, "p of (a^p + b^p)^(1/p): 1 no overlap, large a sharp roof"
)
DROP = ChipConstant(
    "clock_drop", "1", 0.01, 0.6, 0.15, "share of the rate that a long kernel loses to the power limit"
)
BOOST = ChipConstant(
    "boost_s", "s", 1e-6, 2e-2, 1e-3, "kernel length at the peak at which half of that is lost"
)


def soft_maximum(a: FloatArray, b: FloatArray, sharpness: float) -> FloatArray:
    """(a^p + b^p)^(1/p): the larger of two overlapping times, and more where they are alike."""
    top = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.maximum(top, 1e-30)
    return np.asarray(top * (1.0 + ratio**sharpness) ** (1.0 / sharpness))


def traffic_s(constants: Mapping[str, float], chip: Chip, num_bytes: FloatArray) -> FloatArray:
    """Seconds [R] to move `num_bytes` to or from the device memory."""
    return np.asarray(num_bytes / (chip.memory_bytes_per_s * constants["memory_efficiency"]))


def sustained_rate(constants: Mapping[str, float], peak: FloatArray, flops: FloatArray) -> FloatArray:
    """FLOP/s [R] inside the main loop: the peak, less where a kernel is long enough to meet the power limit."""
    length = flops / peak / constants["boost_s"]
    drop = constants["clock_drop"] * length / (1.0 + length)
    return np.asarray(peak * (1.0 - drop))


def log2_columns(*columns: FloatArray) -> FloatArray:
    """Base-2 logarithms [R, D] of positive sizes."""
    return np.log2(np.maximum(np.stack(columns, axis=1), 1e-3))
