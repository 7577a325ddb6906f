"""Expert layers by local shape: two grouped matrix products over the experts of one device, and how full they are.

Letters: `routed` (token, expert) pairs that land on the device, on `touched` of its experts, in `tiles` of ROW_TILE
rows (each expert rounds up); an expert has `matrices` (3 gated, 2 not) of hidden x inner/tp elements.

    compute = tiles * ROW_TILE * 2 * matrices * hidden * inner/tp / (efficiency * peak), in waves over the SMs
    memory  = touched * matrices * hidden * inner/tp * element_bytes / (efficiency * bandwidth)
    seconds = launch + (compute^p + memory^p)^(1/p) + routed * hidden * row_bytes / bandwidth   (permute, cast, sum)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshwright.costs.kernel.chip import (
    COMPUTE,
    LAUNCH,
    MEMORY,
    SHARPNESS,
    TILE,
    Chip,
    ChipConstant,
    Columns,
    FloatArray,
    Formula,
    log2_columns,
    soft_maximum,
    traffic_s,
)

ROW_TILE, COLUMN_TILE = 64, 128  # of grouped products with few rows an expert
DRAWS, SEED = 32, 0  # of loads whose mean stands for a power law
# How the table of measurements draws power-law loads: shares from x^-alpha between these ends, rounded to tokens.
LOAD_LOW, LOAD_HIGH_SHARE = 1.0, 0.8
SPARSE_LOW, SPARSE_HIGH = 0.01, 2.0

ROW_BYTES = ChipConstant(
    "row_bytes", "bytes", 0.5, 60.0, 8.0, "traffic for one element of a routed row: permute, cast, sum"
)


class Loads(NamedTuple):
    """What lands on the device that is measured: pairs, experts with at least one, tiles of ROW_TILE rows."""

    routed: float
    touched: float
    tiles: float


def balanced_loads(num_tokens: int, top_k: int, num_experts: int, ep: int) -> Loads:
    """Every expert gets as many pairs as every other."""
    pairs, local = num_tokens * top_k / ep, num_experts / ep
    touched = min(local, max(1.0, pairs))
    return Loads(pairs, touched, touched * np.ceil(pairs / touched / ROW_TILE))


@lru_cache(maxsize=4096)
def power_law_loads(num_tokens: int, top_k: int, num_experts: int, ep: int, alpha: float) -> Loads:
    """The most loaded of `ep` devices when experts' shares follow x^-alpha: the mean over DRAWS draws."""
    draws = np.random.default_rng(SEED).random((DRAWS, num_experts))
    dense = num_tokens * top_k > num_experts
    low, high = (LOAD_LOW, max(num_tokens * LOAD_HIGH_SHARE, 1.01)) if dense else (SPARSE_LOW, SPARSE_HIGH)
    power = 1.0 - alpha
    shares = ((high**power - low**power) * draws + low**power) ** (1.0 / power)
    loads = np.round(shares / shares.sum(axis=1, keepdims=True) * num_tokens * top_k)
    # What rounding lost or gained goes to, or comes from, the most loaded experts, one pair each.
    missing = num_tokens * top_k - loads.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(-shares, axis=1), axis=1)
    loads += np.where(rank < np.abs(missing), np.sign(missing), 0.0)
    loads = np.minimum(loads, num_tokens).reshape(DRAWS, ep, num_experts // ep)
    hottest = loads[np.arange(DRAWS), loads.sum(axis=2).argmax(axis=1)]
    touched = np.maximum((hottest > 0).sum(axis=1), 1).mean()
    tiles = np.maximum(np.ceil(hottest / ROW_TILE).sum(axis=1), 1).mean()
    return Loads(float(max(hottest.sum(axis=1).mean(), 1.0)), float(touched), float(tiles))


def moe_s(constants: Mapping[str, float], chip: Chip, columns: Columns) -> FloatArray:
    """Seconds [R]; columns routed, touched, tiles, hidden, inner (of this device), matrices, peak, element_bytes."""
    hidden, inner, tiles = columns["hidden"], columns["inner"], columns["tiles"]
    weights = columns["matrices"] * hidden * inner
    rate = columns["peak"] * constants["compute_efficiency"]
    blocks = tiles * (
        np.ceil((columns["matrices"] - 1) * inner / COLUMN_TILE) + np.ceil(hidden / COLUMN_TILE)
    )
    full = np.maximum(blocks, chip.num_sms) / blocks  # fewer blocks than multiprocessors: some idle
    compute = tiles * ROW_TILE * 2 * weights / rate * full
    compute += constants["tile_overhead_s"] * np.maximum(blocks / chip.num_sms, 1.0)
    num_bytes = columns["touched"] * weights * columns["element_bytes"]
    body = soft_maximum(compute, traffic_s(constants, chip, num_bytes), constants["sharpness"])
    rows = columns["routed"] * hidden * constants["row_bytes"] / chip.memory_bytes_per_s
    return np.asarray(constants["launch_s"] + body + rows)


def _place(columns: Columns) -> FloatArray:
    weights = columns["hidden"] * columns["inner"]
    return log2_columns(columns["routed"] / columns["touched"], columns["touched"], weights)


MOE = Formula(
    "moe",
    ("routed", "touched", "tiles", "hidden", "inner", "matrices"),
    (LAUNCH, COMPUTE, MEMORY, TILE, SHARPNESS, ROW_BYTES),
    moe_s,
    _place,
    (
        (0.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0),
        (0.0, 1.0, 2.0, 4.0, 6.0, 9.0),
        (14.0, 18.0, 20.0, 22.0, 24.0, 27.0),
    ),
)
