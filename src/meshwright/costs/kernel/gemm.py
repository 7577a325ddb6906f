"""Matrix products by local shape: tiles in waves over the multiprocessors, memory traffic, launch.

Letters: m, n, k of [m, k] @ [k, n]; a tile of tm x tn results runs on one multiprocessor; s parts of k.

    rate   = peak * (1 - drop * x / (1 + x)),   x = 2 m n k / peak / boost     (power limit)
    tile   = k/s * (2 tm tn / (rate / SMs) + (tm + tn) * element_bytes / feed) + overhead
    waves  = q * ceil(x) + (1 - q) * max(x, 1),      x = ceil(m/tm) * ceil(n/tn) * s / SMs
    compute = min over tiles and s of waves * tile + partial sums of s > 1 through the cache
    memory  = (m k + k n + m n) bytes / (efficiency * bandwidth)
    seconds = launch + (compute^p + memory^p)^(1/p) + casts of the left matrix
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.costs.kernel.chip import (
    BOOST,
    DROP,
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
    sustained_rate,
    traffic_s,
)

# Tile sizes that matrix libraries for these chips ship (CUTLASS documentation, "efficient GEMM"), and parts of k.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64), (64, 32), (32, 64))
SPLITS = (1, 2, 4, 8, 16)
_CHOICES = np.array([(tm, tn, s) for tm, tn in TILES for s in SPLITS], dtype=np.float64)
RESULT_BYTES = 2  # results are written in bfloat16, also from float8
PARTIAL_BYTES = 8  # of a partial sum of a split k: written and read in float32

FEED = ChipConstant(
    "feed_bytes_per_s", "bytes/s", 5e9, 1e12, 8e10, "what one multiprocessor loads from the cache"
)
QUANTISATION = ChipConstant(
    "quantisation", "1", 0.01, 1.0, 0.7, "1: a last wave costs a full one; 0: tiles spread evenly (stream-k)"
)
CAST = ChipConstant(
    "cast_bytes", "bytes", 0.01, 40.0, 3.0, "traffic to cast one element of the left matrix (0: already cast)"
)


def _tiles_s(constants: Mapping[str, float], chip: Chip, columns: Columns) -> FloatArray:
    """Seconds [R] of the best tile size and split."""
    m, n, k = (columns[name][:, None] for name in ("m", "n", "k"))
    tm, tn, split = _CHOICES.T
    flops = 2 * columns["m"] * columns["n"] * columns["k"]
    rate = sustained_rate(constants, columns["peak"], flops)[:, None] / chip.num_sms
    feed = constants["feed_bytes_per_s"]
    step = 2 * tm * tn / rate + (tm + tn) * columns["element_bytes"][:, None] / feed
    tile = np.ceil(k / split) * step + constants["tile_overhead_s"]
    share = np.ceil(m / tm) * np.ceil(n / tn) * split / chip.num_sms
    q = constants["quantisation"]
    waves = q * np.ceil(share) + (1 - q) * np.maximum(share, 1.0)
    partial = np.where(split > 1, m * n * split * PARTIAL_BYTES / (feed * chip.num_sms), 0.0)
    return np.asarray((waves * tile + partial).min(axis=1))


def gemm_s(constants: Mapping[str, float], chip: Chip, columns: Columns) -> FloatArray:
    """Seconds [R]; columns m, n, k, peak, element_bytes, and extra_bytes (traffic beyond the three matrices)."""
    m, n, k = columns["m"], columns["n"], columns["k"]
    num_bytes = (m * k + k * n) * columns["element_bytes"] + m * n * RESULT_BYTES
    memory = traffic_s(constants, chip, num_bytes + columns.get("extra_bytes", np.zeros(len(m))))
    body = soft_maximum(_tiles_s(constants, chip, columns), memory, constants["sharpness"])
    cast = traffic_s(constants, chip, m * k * constants.get("cast_bytes", 0.0))
    return np.asarray(constants["launch_s"] + body + cast)


def _place(columns: Columns) -> FloatArray:
    return log2_columns(columns["m"], columns["n"], columns["k"])


GEMM = Formula(
    "gemm",
    ("m", "n", "k"),
    (
        LAUNCH,
        DROP,
        BOOST,
        MEMORY,
        TILE,
        SHARPNESS,
        FEED,
        QUANTISATION,
        CAST,
    ),
    gemm_s,
    _place,
    (
        (0.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 15.0),
        (5.0, 7.0, 9.0, 10.0, 11.0, 12.0, 14.0, 16.0),
        (5.0, 7.0, 9.0, 10.0, 12.0, 14.0, 16.0),
    ),
)
