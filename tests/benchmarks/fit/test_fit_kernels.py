"""Fitting kernel curves: known constants are found again, tables are read, halves are stable, files are written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from fit.fit_kernels import CHIPS, main
from fit.kernel_fit import fit_constants, fit_curve, fit_grid, half_fitted, score
from fit.kernel_table import KernelTable, is_first_half, read_kernel_tables

from meshwright.costs.kernel.gemm import GEMM
from meshwright.costs.kernel.packaged import load_kernel_profile
from meshwright.costs.kernel.profile import KernelProfile

TRUE = {
    "launch_s": 4e-6, "memory_efficiency": 0.85, "tile_overhead_s": 1e-6, "sharpness": 4.0,
    "feed_bytes_per_s": 6e10, "quantisation": 0.8,
    "clock_drop": 0.1, "boost_s": 1e-3,
}  # fmt: skip


def synthetic(num_rows: int = 600, seed: int = 0) -> KernelTable:
    """Times that the formula itself gives, for shapes drawn evenly in the logarithm."""
    draw = np.random.default_rng(seed).uniform(0, 1, (3, num_rows))
    m, n, k = (np.round(2 ** (low + (high - low) * u)) for u, low, high in zip(draw, (0, 6, 6), (15, 15, 15)))
    columns = {
        "m": m,
        "n": n,
        "k": k,
        "element_bytes": np.full(num_rows, 2.0),
        "peak": np.full(num_rows, 312e12),
    }
    seconds = GEMM.seconds(TRUE, CHIPS["a100"], columns)
    half = np.array([is_first_half(shape) for shape in zip(m, n, k)])
    return KernelTable("gemm", "bfloat16", columns, seconds, half)


def test_constants_are_found_again() -> None:
    found = fit_constants(synthetic(), CHIPS["a100"])
    for name in ("launch_s", "memory_efficiency", "feed_bytes_per_s"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.1), name


def test_a_curve_fitted_on_half_predicts_the_other_half() -> None:
    table = synthetic()
    curve = half_fitted(table, CHIPS["a100"])
    rest = table.rows(~table.first_half)
    assert score(curve.seconds(CHIPS["a100"], rest.columns), rest.seconds).median < 0.03


def test_a_grid_learns_a_slope_ignores_odd_rows_and_stays_zero_where_nothing_is_known() -> None:
    points = np.random.default_rng(1).uniform(0, 3, (400, 1))
    left = 0.1 * points[:, 0]
    left[::40] += 3.0
    grid = fit_grid(((0.0, 1.0, 2.0, 3.0),), points, left)
    assert np.log(grid.factor(np.array([[0.5], [2.5]]))) == pytest.approx([0.05, 0.25], abs=0.02)
    assert fit_grid(((0.0, 1.0),), points[:0], left[:0]).values == (0.0, 0.0)


def test_halves_are_stable_and_even() -> None:
    halves = [is_first_half((m, n)) for m in range(40) for n in range(40)]
    assert halves == [is_first_half((m, n)) for m in range(40) for n in range(40)]
    assert 0.45 < sum(halves) / len(halves) < 0.55


def test_score_counts_sizes_and_signs() -> None:
    found = score(np.array([1.1, 0.9, 1.3]), np.ones(3))
    assert found.median == pytest.approx(0.1) and found.bias == pytest.approx(0.1)


def _write_table(folder: Path) -> None:
    table = synthetic(300)
    rows = ["gemm_dtype,m,n,k,latency"]
    for m, n, k, seconds in zip(*(table.columns[name] for name in "mnk"), table.seconds, strict=True):
        rows.append(f"bfloat16,{m:.0f},{n:.0f},{k:.0f},{seconds * 1e3}")
    rows.append("int4_wo,1,1,1,1.0")
    with gzip.open(folder / "aiconfigurator_a100_sxm_trtllm_gemm_perf.csv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")


def test_the_script_reads_a_folder_and_writes_profiles(tmp_path: Path) -> None:
    _write_table(tmp_path)
    assert main([str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a100.json"]
    profile = KernelProfile.from_dict(json.loads((tmp_path / "out" / "a100.json").read_text()))
    (curve,) = profile.curves
    assert curve.num_shapes == 300 and curve.median_error < 0.05 and curve.ranges["m"][0] >= 1
    assert profile.streaming == {}


def test_a_folder_without_tables_is_the_users_mistake(tmp_path: Path) -> None:
    assert main([str(tmp_path), "-o", str(tmp_path / "out")]) == 2


def test_the_packages_a100_products_are_those_of_the_tables(shared_data: Path) -> None:
    folder = shared_data / "calibration" / "kernels"
    tables = read_kernel_tables(folder, "a100_sxm", CHIPS["a100"])
    table = next(table for table in tables if table.formula == "gemm")
    curve = load_kernel_profile("a100").curve("gemm", "bfloat16")
    assert curve is not None and curve.num_shapes == len(table.seconds)
    assert score(curve.seconds(CHIPS["a100"], table.columns), table.seconds).median < 0.08
    fresh = fit_curve(table, CHIPS["a100"])
    assert fresh.median_error == pytest.approx(curve.median_error, rel=0.05)
