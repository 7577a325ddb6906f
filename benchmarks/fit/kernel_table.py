"""Reads published tables of kernel times (gzip CSV, as aiconfigurator and Vidur write them) into columns of sizes."""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.costs.kernel.attention import MOST_SHARING, UNSHARED
from meshwright.costs.kernel.chip import Chip, FloatArray
from meshwright.costs.kernel.moe import balanced_loads, power_law_loads

MS = 1e-3
SEED = "meshwright-kernels-0"  # of the split of shapes into halves
Row = Mapping[str, str]
Sizes = dict[str, float]

# Number formats of the tables that are fitted: bytes of an element, and whose peak they run at. Weight-only and
# integer formats, 4-bit formats and the smooth-quantised one are left out: nothing here trains in them.
FORMATS: Mapping[str, tuple[float, str]] = {
    "bfloat16": (2.0, "bfloat16"),
    "fp8": (1.0, "float8"),
    "fp8_static": (1.0, "float8"),
    "fp8_block": (1.0, "float8"),
}

# Behind the format's name: kernels that the library chooses between, each with a curve of its own. Attention to a
# window of keys; a cache in float8; query heads that do not share a read of the cache (see kernel_attention).
WINDOWED, CACHE_8BIT = " window", " cache8"


@dataclass(frozen=True)
class KernelTable:
    """Shapes of one kind in one format: columns [R], measured seconds [R], and which rows are fitted when halved."""

    formula: str
    dtype: str
    columns: Mapping[str, FloatArray]
    seconds: FloatArray
    first_half: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def rows(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> KernelTable:
        """Only the rows where `chosen` is true."""
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return KernelTable(self.formula, self.dtype, columns, self.seconds[chosen], self.first_half[chosen])


def is_first_half(shape: tuple[object, ...]) -> bool:
    """Does a shape belong to the fitted half? By a hash with a fixed seed, whatever its number format."""
    digest = hashlib.sha256(f"{SEED}:{shape}".encode()).digest()
    return digest[0] % 2 == 0


def _gemm(row: Row) -> tuple[str, Sizes]:
    return row["gemm_dtype"], {name: float(row[name]) for name in ("m", "n", "k")}


def _context(row: Row) -> tuple[str, Sizes]:
    sizes = _attention(row) | {"sequence": float(row["isl"]), "is_causal": 1.0}
    return row["attn_dtype"], sizes


def _generation(row: Row) -> tuple[str, Sizes]:
    cache = 1.0 if row["kv_cache_dtype"] == "fp8" else 2.0
    keys = float(row["isl"]) + float(row["step"])
    return row["attn_dtype"], _attention(row) | {"keys": keys, "cache_bytes": cache}


def _attention(row: Row) -> Sizes:
    names = {"batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads"}
    sizes = {name: float(row[column]) for name, column in names.items()}
    return sizes | {"head_dim": float(row["head_dim"]), "window": float(row["window_size"])}


def _class(kind: str, sizes: Sizes) -> str:
    """Which of the library's kernels runs a shape, as the suffix of its curve."""
    suffix = WINDOWED if sizes.get("window") else ""
    if kind != "generation_attention":
        return suffix
    group = sizes["heads"] / sizes["kv_heads"]
    suffix += CACHE_8BIT if sizes["cache_bytes"] == 1 else ""
    return suffix + (UNSHARED if group == 1 or group > MOST_SHARING else "")


def _moe(row: Row) -> tuple[str, Sizes]:
    tokens, top_k, experts, ep = (
        int(row[name]) for name in ("num_tokens", "topk", "num_experts", "moe_ep_size")
    )
    if row["distribution"] == "balanced":
        loads = balanced_loads(tokens, top_k, experts, ep)
    else:
        loads = power_law_loads(tokens, top_k, experts, ep, float(row["distribution"].rsplit("_", 1)[1]))
    inner = float(row["inter_size"]) / float(row["moe_tp_size"])
    gated = 2.0 if row["kernel_source"].endswith("nongated") else 3.0
    sizes = {"hidden": float(row["hidden_size"]), "inner": inner, "matrices": gated}
    named = {name: float(row[name]) for name in ("num_tokens", "topk", "num_experts", "moe_ep_size")}
    return row["moe_dtype"], {**loads._asdict(), **sizes, **named}


# Kind -> how its file is named, and how a row of it is read.
KINDS: Mapping[str, tuple[str, Callable[[Row], tuple[str, Sizes]]]] = {
    "gemm": ("gemm", _gemm),
    "context_attention": ("context_attention", _context),
    "generation_attention": ("generation_attention", _generation),
    "moe": ("moe", _moe),
}


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a gzip CSV as dictionaries of text."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def read_kernel_tables(folder: Path, system: str, chip: Chip) -> list[KernelTable]:
    """The tables of one system ("h100_sxm"), one for each kind and number format. Missing files are left out."""
    tables = []
    for kind, (name, read) in KINDS.items():
        path = folder / f"aiconfigurator_{system}_trtllm_{name}_perf.csv.gz"
        if path.is_file():
            tables += _tables(kind, path, read, chip)
    return tables


def _tables(kind: str, path: Path, read: Callable[[Row], tuple[str, Sizes]], chip: Chip) -> list[KernelTable]:
    """One table a number format; repeated shapes (other releases, other caches) stay as they are."""
    found: dict[str, list[tuple[Sizes, float]]] = {}
    for row in read_rows(path):
        dtype, sizes = read(row)
        is_empty = sizes.get("m") == 0  # some tables hold products without rows
        if dtype in FORMATS and not is_empty:
            found.setdefault(dtype + _class(kind, sizes), []).append((sizes, float(row["latency"]) * MS))
    return [_table(kind, dtype, rows, chip) for dtype, rows in sorted(found.items())]


def _table(kind: str, dtype: str, rows: list[tuple[Sizes, float]], chip: Chip) -> KernelTable:
    element_bytes, peak = FORMATS[dtype.split(" ")[0]]
    num = len(rows)
    columns = {name: np.array([sizes[name] for sizes, _ in rows]) for name in rows[0][0]}
    columns["element_bytes"] = np.full(num, element_bytes)
    columns["peak"] = np.full(num, chip.flops_per_s[peak])
    half = np.array([is_first_half(tuple(sorted(sizes.items()))) for sizes, _ in rows])
    return KernelTable(kind, dtype, columns, np.array([seconds for _, seconds in rows]), half)
