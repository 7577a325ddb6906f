"""Prints how far the kernel curves are from measured kernels: fitted on half the shapes, tested on the other half.

Run: python benchmarks/kernel_fidelity.py [TABLES]   (a folder of gzip CSV tables, as evidence.kernel_table reads them)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from fit.fit_kernels import BYTES, CHIPS
from fit.kernel_fit import KernelScore, half_fitted, score
from fit.kernel_table import MS, KernelTable, Row, read_kernel_tables, read_rows

from meshwright.costs.kernel.chip import Chip, FloatArray
from meshwright.costs.kernel.profile import FORMULAS, KernelCurve

NUM_WORST = 3
# Where the tables lie when they are beside the checkout.
BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "kernels"
HEADER = "| chip | kernel | format | shapes | median % | p80 % | bias % | formula alone % | unseen size % |"
LEAST_TOKENS = 512  # of another source's products: below, its times are mostly the host's launches
# The stricter test: every shape with a fourth of the values of this size is kept out, so no neighbour is fitted.
UNSEEN = {"gemm": "n", "context_attention": "sequence", "generation_attention": "heads", "moe": "hidden"}
# Vidur's matrix products: column -> (results, inner size) from a row; gated up projections are one product.
PRODUCTS: Mapping[str, Callable[[Row, float], tuple[float, float]]] = {
    "mlp_up_proj_ms": lambda r, tp: (2 * float(r["n_expanded_embd"]) / tp, float(r["n_embd"])),
    "mlp_down_proj_ms": lambda r, tp: (float(r["n_embd"]), float(r["n_expanded_embd"]) / tp),
    "attn_post_proj_ms": lambda r, tp: (float(r["n_embd"]), float(r["n_embd"]) / tp),
}


def tested(table: KernelTable, chip: Chip) -> tuple[KernelScore, KernelScore, list[str]]:
    """Errors on the second half with and without the correction, and the worst shapes."""
    curve, rest = half_fitted(table, chip), table.rows(~table.first_half)
    predicted = curve.seconds(chip, rest.columns)
    bare = FORMULAS[table.formula].seconds(curve.constants, chip, rest.columns)
    error = predicted / rest.seconds - 1
    worst = np.argsort(-np.abs(np.log1p(error)))[:NUM_WORST]
    return (
        score(predicted, rest.seconds),
        score(bare, rest.seconds),
        [
            f"{_shape(rest, row)}: measured {rest.seconds[row] * 1e6:.1f} us, {100 * error[row]:+.0f} %"
            for row in worst
        ],
    )


def unseen(table: KernelTable, chip: Chip) -> float:
    """Mean over four folds of the median error on shapes with sizes that no fitted shape has."""
    sizes = table.columns[UNSEEN[table.formula]]
    values = np.unique(sizes)
    medians = []
    for fold in range(4):
        kept = replace(table, first_half=~np.isin(sizes, values[fold::4]))
        rest = kept.rows(~kept.first_half)
        if len(rest.seconds):
            medians.append(score(half_fitted(kept, chip).seconds(chip, rest.columns), rest.seconds).median)
    return float(np.mean(medians))


def _shape(table: KernelTable, row: int) -> str:
    names = [name for name in table.columns if name not in ("peak", "element_bytes", "is_causal")]
    return " ".join(f"{name}={table.columns[name][row]:g}" for name in names)


def other_library(folder: Path, name: str, curve: KernelCurve, chip: Chip) -> Iterator[str]:
    """Vidur's matrix products (another source, none of it fitted) against the curve of the first half of shapes."""
    for column, sizes in PRODUCTS.items():
        points = []
        for path in sorted(folder.glob(f"vidur_mlp_{name}_*.csv.gz")):
            for row in read_rows(path):
                if float(row["num_tokens"]) < LEAST_TOKENS:
                    continue
                n, k = sizes(row, float(row["num_tensor_parallel_workers"]))
                points.append((float(row["num_tokens"]), n, k, float(row[column]) * MS))
        if points:
            table: FloatArray = np.array(points)
            columns = {size: table[:, place] for place, size in enumerate("mnk")}
            columns["element_bytes"] = np.full(len(table), float(BYTES))
            columns["peak"] = np.full(len(table), chip.flops_per_s["bfloat16"])
            seconds = table[:, 3]
            found = score(curve.seconds(chip, columns), seconds)
            yield (
                f"| {name} | Vidur {column.removesuffix('_ms')} | float16 | {len(table)} | {100 * found.median:.1f} "
                f"| {100 * found.p80:.1f} | {100 * found.bias:+.1f} | | |"
            )


def main() -> int:
    """The table on stdout, worst shapes behind it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="?", default=BESIDE)
    folder = parser.parse_args().tables
    if not folder.is_dir():
        print(f"skipped: {folder} is not a folder of kernel tables", file=sys.stderr)
        return 0
    worst_lines = []
    print(HEADER, "|---" * 9 + "|", sep="\n")
    for name, chip in CHIPS.items():
        for table in read_kernel_tables(folder, f"{name}_sxm", chip):
            found, bare, worst = tested(table, chip)
            print(
                f"| {name} | {table.formula} | {table.dtype} | {len(table.seconds)} | {100 * found.median:.1f} "
                f"| {100 * found.p80:.1f} | {100 * found.bias:+.1f} | {100 * bare.median:.1f} "
                f"| {100 * unseen(table, chip):.1f} |",
                flush=True,
            )
            worst_lines += [f"{name} {table.formula} {table.dtype}: {line}" for line in worst]
            if table.formula == "gemm" and table.dtype == "bfloat16":
                for line in other_library(folder, name, half_fitted(table, chip), chip):
                    print(line)
    print("\nWorst held-out shapes:", *worst_lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
