"""Attention by local shape: the whole sequence at once (context), and one new token against a cache (generation).

Context. Letters: B sequences, H heads, G key/value heads, S tokens, D head size, w window (0: none). A thread block
takes QUERY_TILE queries of one head and visits the KEY_TILE keys that the causal mask and the window leave:

    visit   = 4 tq tk D / (efficiency * peak / SMs) + tq tk / exponentials
    waves   = ceil(blocks / SMs)
    compute = max(all visits * visit / blocks * waves, the longest block) + waves * overhead
    memory  = tokens * (H + 2 G) * D * touched bytes / (efficiency * bandwidth)     (rotation, cache, layout)
    seconds = launch + compute + memory

Generation. L keys of each of B sequences, read once:

    memory  = 2 B G L D cache_bytes / (efficiency * bandwidth)
    block   = keys of one block at `block_bytes_per_s`, and what its H/G queries compute; split where blocks are few
    seconds = launch + (memory^8 + (waves * (block + overhead))^8)^(1/8)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.costs.kernel.chip import (
    COMPUTE,
    LAUNCH,
    MEMORY,
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

QUERY_TILE, KEY_TILE = (
    128,
    128,
)  # FlashAttention-2 and 3 (arXiv 2307.08691, 2407.08608): 128 x 64 to 128 x 176
LEAST_KEYS = 64  # a split of the cache below this many keys is not worth a block
# TensorRT-LLM's grouped kernel serves up to 32 query heads with one read of their keys; with more, and with one, each
# head reads on its own (seen in its tables: times grow twenty- to thirtyfold from 32 to 48 heads a group).
MOST_SHARING = 32
UNSHARED = " unshared"  # behind a format's name: the curve of those other kernels
ROOF = 8.0  # p of the two times of generation, which overlap almost wholly; a shape, not fitted
LONGEST_MEASURED = 16384.0  # tokens of a sequence in the tables of context attention
LEAST_QUERIES = 16  # rows of the smallest tensor-core product

EXPONENTIALS = ChipConstant(
    "exponentials_per_s",
    "1/s",
    2e9,
    2e11,
    2.5e10,
    "exponentials of one multiprocessor not hidden by products",
)
TOUCHED = ChipConstant("touched_bytes", "bytes", 1.0, 40.0, 8.0, "traffic for one element of q, k and v")
BLOCK = ChipConstant(
    "block_bytes_per_s", "bytes/s", 2e9, 4e11, 3e10, "what one thread block reads of the cache"
)
QUERY_RATE = ChipConstant(
    "query_efficiency",
    "1",
    1e-3,
    1.0,
    0.2,
    "share of the peak in products of 16 or more queries with the cache",
)


def _visits(sequence: FloatArray, window: FloatArray, is_causal: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Key tiles visited by all query tiles of one head, and by the longest one."""
    rows = np.ceil(sequence / QUERY_TILE)
    part = np.minimum(sequence, KEY_TILE) / KEY_TILE  # a short sequence fills part of its one tile
    reach = np.where(window > 0, np.ceil(window / KEY_TILE) + 1, np.inf)
    longest = np.minimum(np.where(is_causal > 0, rows, sequence / KEY_TILE), reach)
    triangle = longest * (longest + 1) / 2 + (rows - longest) * longest
    total = np.where(is_causal > 0, triangle, rows * longest)
    return total * part, longest * part


def context_s(constants: Mapping[str, float], chip: Chip, columns: Columns) -> FloatArray:
    """Seconds [R]; columns batch, heads, kv_heads, sequence, head_dim, window, is_causal, peak, element_bytes."""
    batch, heads, dim = columns["batch"], columns["heads"], columns["head_dim"]
    sequence = columns["sequence"]
    total, longest = _visits(sequence, columns["window"], columns["is_causal"])
    pairs = QUERY_TILE * KEY_TILE
    rate = columns["peak"] * constants["compute_efficiency"] / chip.num_sms
    visit = 4 * pairs * dim / rate + pairs / constants["exponentials_per_s"]
    share = batch * heads * np.ceil(sequence / QUERY_TILE) / chip.num_sms
    waves = np.ceil(share)
    work = np.maximum(batch * heads * total / chip.num_sms * waves / share, longest) * visit
    touched = batch * sequence * (heads + 2 * columns["kv_heads"]) * dim * constants["touched_bytes"]
    memory = traffic_s(constants, chip, touched)
    return np.asarray(constants["launch_s"] + work + waves * constants["tile_overhead_s"] + memory)


def _streams(columns: Columns) -> FloatArray:
    """How many times a cache is read: once a key/value head, or once a query head where they do not share."""
    is_shared = columns["heads"] <= MOST_SHARING * columns["kv_heads"]
    return np.asarray(columns["batch"] * np.where(is_shared, columns["kv_heads"], columns["heads"]))


def generation_s(constants: Mapping[str, float], chip: Chip, columns: Columns) -> FloatArray:
    """Seconds [R]; columns batch, heads, kv_heads, keys, head_dim, window, cache_bytes, peak."""
    window, dim = columns["window"], columns["head_dim"]
    keys = np.where(window > 0, np.minimum(columns["keys"], np.maximum(window, 1.0)), columns["keys"])
    pairs = _streams(columns)
    per_key = 2 * dim * columns["cache_bytes"]
    num_bytes = pairs * keys * per_key
    memory = traffic_s(constants, chip, num_bytes)
    splits = np.clip(np.floor(chip.num_sms / pairs), 1.0, np.ceil(keys / LEAST_KEYS))
    length = np.ceil(keys / splits)
    shared = columns["batch"] * columns["heads"] / pairs
    queries = np.where(shared > 1, np.ceil(shared / LEAST_QUERIES) * LEAST_QUERIES, 1.0)
    rate = columns["peak"] * constants["query_efficiency"] / chip.num_sms
    block = length * (per_key / constants["block_bytes_per_s"] + 4 * queries * dim / rate)
    waves = np.maximum(pairs * splits / chip.num_sms, 1.0)
    busy = waves * (block + constants["tile_overhead_s"])
    return np.asarray(constants["launch_s"] + soft_maximum(memory, busy, ROOF))


def _context_place(columns: Columns) -> FloatArray:
    """Beyond the longest sequences of the tables that of a kernel with as many blocks at these: with few heads it is not as
    idle as one of few heads and few tokens."""
    group = columns["heads"] / columns["kv_heads"]
    sequence = np.minimum(columns["sequence"], LONGEST_MEASURED)
    rows = columns["batch"] * columns["heads"] * columns["sequence"] / sequence
    return log2_columns(rows, sequence, group, columns["head_dim"])


def _generation_place(columns: Columns) -> FloatArray:
    group = columns["heads"] / columns["kv_heads"]
    return log2_columns(_streams(columns), columns["keys"], group, columns["head_dim"])


CONTEXT = Formula(
    "context_attention",
    ("batch", "heads", "kv_heads", "sequence", "head_dim", "window"),
    (LAUNCH, COMPUTE, MEMORY, TILE, EXPONENTIALS, TOUCHED),
    context_s,
    _context_place,
    (
        (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 13.0),
        (4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0),
        (0.0, 3.0, 6.0),
        (6.0, 7.0),
    ),
)
GENERATION = Formula(
    "generation_attention",
    ("batch", "heads", "kv_heads", "keys", "head_dim", "window"),
    (LAUNCH, MEMORY, TILE, BLOCK, QUERY_RATE),
    generation_s,
    _generation_place,
    (
        (0.0, 2.0, 4.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0),
        (1.0, 4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0, 17.0),
        (0.0, 2.0, 4.0, 5.0),
        (6.0, 7.0),
    ),
)
