"""Fits the kernel profiles of the package: `python -m benchmarks.fit.fit_kernels TABLES -o DIR`.

TABLES is a folder of published kernel times (see kernel_table); DIR gets one JSON file a chip, with the constants,
the corrections, and their errors on shapes that were kept out.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from meshwright.costs.kernel.chip import Chip
from meshwright.costs.kernel.profile import KernelProfile, Streaming
from meshwright.specs.error import SpecError

from .kernel_fit import fit_curve
from .kernel_table import MS, Row, read_kernel_tables, read_rows

log = logging.getLogger(__name__)

CHIPS: Mapping[str, Chip] = {
    "a100": Chip(
        "a100", 108, {"bfloat16": 312e12}, 2039e9, 40e6,
        "NVIDIA A100 Tensor Core GPU data sheet (SXM4 80 GB) and architecture white paper",
    ),
    "h100": Chip(
        "h100", 132, {"bfloat16": 989.4e12, "float8": 1978.9e12}, 3350e9, 50e6,
        "NVIDIA H100 Tensor Core GPU data sheet (SXM5 80 GB, dense) and architecture white paper",
    ),
    "b200": Chip(
        "b200", 148, {"bfloat16": 2250e12, "float8": 4500e12}, 8000e9, 126e6,
        "NVIDIA HGX B200 data sheet (dense); multiprocessors and cache as the CUDA driver reports them",
    ),
}  # fmt: skip
SOURCE = (
    "ai-dynamo/aiconfigurator, measured kernel times of TensorRT-LLM on one GPU "
    "(at most 12,000 rows a table, sampled); operators bound by memory from microsoft/vidur, mlp profiles"
)
LICENCE = "aiconfigurator: Apache-2.0; vidur: MIT"
BYTES = 2  # of an element in Vidur's tables: float16

# Operator -> column of Vidur's table, and how many arrays of tokens x width it touches; widths by column.
STREAMED: Mapping[str, tuple[str, str, float]] = {
    "add": ("add_ms", "n_embd", 3.0),
    "activation": ("mlp_act_ms", "n_expanded_embd", 5.0),  # silu 2, product 3: as specs.layer_operator counts
}
# An operator counts from here on: what fits the level-2 cache is not at the memory's rate.
LEAST_CACHES, LEAST_ROWS = 2.0, 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit every chip whose tables are in the folder. Exit status 0, 2 where there are none."""
    parser = argparse.ArgumentParser(prog="fit_kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", type=Path, help="folder of gzip CSV tables")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder that gets NAME.json")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.output.mkdir(parents=True, exist_ok=True)
    num_written = 0
    for name in CHIPS:
        try:
            profile = fit_profile(options.tables, name)
        except SpecError as error:
            log.warning("%s", error)
            continue
        write_profile(profile, options.output / f"{name}.json")
        num_written += 1
    return 0 if num_written else 2


def fit_profile(folder: Path, name: str) -> KernelProfile:
    """Everything that the tables of a folder tell about one chip. Raises SpecError where there are none."""
    chip = CHIPS[name]
    tables = read_kernel_tables(folder, f"{name}_sxm", chip)
    if not tables:
        raise SpecError(f"{folder} has no tables of {name}", allowed=f"aiconfigurator_{name}_sxm_*.csv.gz")
    curves = []
    for table in tables:
        curve = fit_curve(table, chip)
        log.info(
            "%s %s %s: %d shapes, held out: median %.1f %%, 80th percentile %.1f %% (formula alone %.1f %%)",
            name, table.formula, table.dtype, curve.num_shapes, 100 * curve.median_error,
            100 * curve.p80_error, 100 * curve.formula_error,
        )  # fmt: skip
        curves.append(curve)
    return KernelProfile(chip, tuple(curves), fit_streaming(folder, name), SOURCE, LICENCE)


def write_profile(profile: KernelProfile, path: Path) -> None:
    """As JSON, one curve's table a line."""
    data = profile.to_dict()
    lines = ",\n".join(f"    {json.dumps(curve)}" for curve in data.pop("curves"))
    head = json.dumps(data, indent=2).removesuffix("\n}")
    path.write_text(f'{head},\n  "curves": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


def fit_streaming(folder: Path, name: str) -> Mapping[str, Streaming]:
    """Memory-bound operators from Vidur's tables of this chip; empty where there are none."""
    rows = [row for path in sorted(folder.glob(f"vidur_mlp_{name}_*.csv.gz")) for row in read_rows(path)]
    found = {operator: _streaming(rows, operator, CHIPS[name]) for operator in STREAMED}
    return {operator: fitted for operator, fitted in found.items() if fitted is not None}


def _streaming(rows: Iterable[Row], operator: str, chip: Chip) -> Streaming | None:
    """Least squares of the relative error of overhead + bytes / rate, both at least zero; None without enough rows."""
    from scipy.optimize import nnls

    column, width, touches = STREAMED[operator]
    points = []
    for row in rows:
        tokens = float(row["num_tokens"])
        # The feed-forward width is split over the tensor-parallel group, the hidden state is not.
        share = float(row["num_tensor_parallel_workers"]) if width == "n_expanded_embd" else 1.0
        size_bytes = tokens * float(row[width]) / share * touches * BYTES
        if size_bytes >= LEAST_CACHES * chip.cache_bytes and row[column]:
            points.append((size_bytes, float(row[column]) * MS))
    if len(points) < LEAST_ROWS:
        return None
    num_bytes, seconds = (np.array(values) for values in zip(*points, strict=True))
    (overhead, slope), _ = nnls(np.stack([1 / seconds, num_bytes / seconds], axis=1), np.ones(len(seconds)))
    error = np.median(np.abs((overhead + slope * num_bytes) / seconds - 1))
    return Streaming(1 / (slope * chip.memory_bytes_per_s), float(overhead), float(error), len(points))


if __name__ == "__main__":
    raise SystemExit(main())
