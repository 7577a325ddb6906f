"""Tables of measured serving: every row is read or left out with a reason, sums are steps, constants are found again."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fit.fit_serving_tables import AddedConstants, errors, fitted, without_own
from benchmarks.fit.serving_parts import PARTS, ROOFLINE, program_of, step_parts
from benchmarks.fit.serving_rows import THROUGHPUT, TPOT, read
from tests.serving.simulated_case import of_8b

from meshwright.serving.simulated.batch_shape import BatchShape

KNOWN = AddedConstants((1.1, 0.9, 1.05, 1.2, 0.95), 1e-3, -10e-6, 5e-6)


def drawn_sums(number: int, seed: int) -> np.ndarray:
    """Rows of 10 to 100 ms of kernels, one step each of 32 or 80 layers."""
    draw = np.random.default_rng(seed)
    sums = draw.uniform(1e-3, 2e-2, (number, len(PARTS) + 3))
    sums[:, len(PARTS)] = 1.0
    sums[:, len(PARTS) + 1] = draw.choice([32, 80], number)
    sums[:, len(PARTS) + 2] = sums[:, len(PARTS) + 1] * draw.integers(0, 2, number)
    return sums


@pytest.mark.parametrize(("tp", "dtype"), [(1, "bfloat16"), (2, "float8")])
def test_the_parts_of_a_step_are_the_step_as_plans_price_it(tp: int, dtype: str) -> None:
    """On one device and on two, which exchange: float8 and small sums cost in a fit what they do in a plan."""
    planned = replace(of_8b(tp), dtype=dtype)
    for batch in (BatchShape.of([(0, 300)], 5, 900), BatchShape.of((), 40, 40_000)):
        parts = step_parts(program_of("llama-3.1-8b", "H100", tp, dtype, ""), batch)
        assert parts.sum() - parts[ROOFLINE] == pytest.approx(planned.step(batch).latency_s, rel=1e-6)
        assert (parts[PARTS.index("exchange")] > 0) == (tp > 1)


def test_constants_are_found_again_and_nobody_is_predicted_by_itself() -> None:
    """One group of three was measured twice as slow: left out, it is missed by half, and the others are not asked."""
    sums = drawn_sums(300, 1)
    found = fitted(sums, KNOWN.seconds(sums), ["one"] * 300)
    off = np.abs(found.seconds(sums) / KNOWN.seconds(sums) - 1.0)
    assert np.median(off) < 0.025 and off.max() < 0.1

    groups = ["a"] * 100 + ["b"] * 100 + ["slow"] * 100
    measured = KNOWN.seconds(sums) * np.repeat([1.0, 1.0, 2.0], 100)
    blind = without_own(sums, measured, groups, groups)[200:] / measured[200:]
    assert np.median(blind) == pytest.approx(0.5, abs=0.04)


def table(folder: Path, **changes: str) -> Path:
    """One row of 8B on one H100, changed."""
    values = {
        "row_id": "t-1", "core": "1", "model": "llama3.1-8b", "engine": "e", "gpu": "H100-80GB-SXM", "tp": "1", "ep": "",
        "dp_attention": "", "weight_bits": "8", "kv_bits": "8", "mode": "offline", "isl": "128", "osl": "100",
        "num_requests": "50", "max_concurrency": "", "batch_size": "", "out_tokens_per_s": "1000", "tpot_ms_mean": "",
    }  # fmt: skip
    path = folder / "t.csv"
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, values)
        writer.writeheader()
        writer.writerow(values | changes)
    return path


def test_rows_are_loads(tmp_path: Path) -> None:
    """Offline a whole load, closed a token; errors are of the throughput, or of the time."""
    ((offline,), _) = read([table(tmp_path)])
    assert (offline.kind, offline.measured_s, offline.num_clients) == (THROUGHPUT, 5.0, 0)
    assert (offline.dtype, offline.cache_dtype, len(offline.requests())) == ("float8", "float8", 50)
    closed = {"mode": "aggregated", "max_concurrency": "4", "tpot_ms_mean": "20"}
    ((row,), _) = read([table(tmp_path, **closed)])
    assert (row.kind, row.measured_s, row.num_clients, row.num_requests) == (TPOT, 0.02, 4, 20)
    off = errors([offline, row], np.array([5.0, 0.02]), np.array([4.0, 0.01]))
    assert off == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"core": "0"}, "core"),
        ({"weight_bits": "4"}, "four bits"),
        ({"weight_bits": ""}, "no number format"),
        ({"model": "gptj-6b"}, "no preset of gptj-6b"),
        ({"gpu": "TPU"}, "no preset of TPU"),
        ({"ep": "0"}, "contradict"),
        ({"mode": "first-token latency"}, "first token"),
    ],
)
def test_what_is_no_load_of_ours_is_left_out_with_the_reason(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    """By name."""
    rows, reasons = read([table(tmp_path, **changes)])
    assert not rows and reason in next(iter(reasons))


def test_every_published_row_is_read_or_has_a_reason(shared_data: Path) -> None:
    """Nothing is lost between the two."""
    paths = sorted((shared_data / "calibration" / "serving").glob("*.csv"))
    rows, reasons = read(paths)
    lines = sum(len(path.read_text().splitlines()) - 1 for path in paths)
    assert len(rows) + sum(reasons.values()) == lines and len({row.source for row in rows}) == 5
