"""Memory: the predicted peak of every row of the training tables that has one, beside what was measured.

A row is a plan (`meshwright.evidence.tables.job`), and the plan's peak comes from `planner.memory_estimate`: allocated
bytes, or reserved ones where the source reports these (`specs.stack.traits`). No constant of the estimate is fitted to
these rows, though they were in view when its terms were chosen (the block of freed logits was added after torchtitan's).
The column "left out" shows, for what it is worth, one common factor fitted on the other sources and applied to the one
left out.
Per source: rows, median and largest |predicted / measured - 1|, median signed error, share of rows above the upper bound,
slowest estimate. The numbers a change must not make worse: the median, averaged over sources (at most 8 %), and the share
above the bound (at most 5 %).

One JSON object on stdout, the table on stderr; 0 where both limits hold or there is no table, 3 where one does not.

    .venv/bin/python benchmarks/memory_fidelity.py [TABLES] [--worst 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import meshwright
from meshwright.catalog import find_schedule
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.memory_column import column_of, peak_of
from meshwright.evidence.tables.table import TrainingRow, read_training_table
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.specs.units import format_bytes

# Where the tables lie when they are beside the checkout.
BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "training"
SCHEMA = 1
LIMIT = 0.08  # median error, averaged over sources
ABOVE_LIMIT = 0.05  # share of rows above the upper bound
NUM_HOLDERS = 4  # of a row among the worst


@dataclass(frozen=True)
class Point:
    """One row: bytes predicted and measured, the bound, seconds that the estimate took, the largest holders."""

    row_id: str
    source: str
    predicted: float
    measured: float
    upper: float
    seconds: float
    holders: str

    @property
    def error(self) -> float:
        """Signed, relative."""
        return self.predicted / self.measured - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print table and JSON; 0 where the limits hold or there is no table, 3 where one does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "tables", type=Path, nargs="?", default=BESIDE, help="a training table, or the folder with them"
    )
    parser.add_argument("--worst", type=int, default=5, help="so many of the worst rows")
    options = parser.parse_args(arguments)
    if options.tables == BESIDE and not BESIDE.is_dir():
        print(f"skipped: no table is given and {BESIDE} has none", file=sys.stderr)
        return 0
    paths = sorted(options.tables.glob("*.csv")) if options.tables.is_dir() else [options.tables]
    points = [point for path in paths if is_of_rows(path) for point in read_points(path)]
    if not points:
        parser.error(f"no row under {options.tables} has peak_mem_gib; name the folder calibration/training")
    sources = {source: line(points, source) for source in sorted({point.source for point in points})}
    result = {
        "schema": SCHEMA,
        "version": meshwright.__version__,
        "sources": sources,
        "median_error": statistics.fmean(found["median"] for found in sources.values()),
        "median_error_left_out": statistics.fmean(found["left_out"] for found in sources.values()),
        "share_above": share_above(points),
        "worst": [
            {**asdict(point), "error": point.error}
            for point in sorted(points, key=lambda point: -abs(point.error))[: options.worst]
        ],
    }
    show(result, points, options.worst)
    print(json.dumps(result))
    return 0 if result["median_error"] <= LIMIT and result["share_above"] <= ABOVE_LIMIT else 3


def is_of_rows(path: Path) -> bool:
    """Is this a table of runs (and not the one of single stages)?"""
    return path.read_text(encoding="utf-8").startswith("row_id,")


def read_points(path: Path) -> list[Point]:
    """Every row of a table that has a measured peak."""
    return [point(row) for row in read_training_table(path) if row.peak_bytes is not None]


def point(row: TrainingRow) -> Point:
    """What is predicted for a row, beside what was measured."""
    job = job_of(row)
    schedule = find_schedule(job.plan.schedule)
    began = time.perf_counter()
    memory = estimate_memory(job.plan, job.cluster, schedule)
    took = time.perf_counter() - began
    peak = peak_of(column_of(row), memory, job.plan, job.cluster.memory_bytes, row.peak_bytes)
    holders = ", ".join(f"{what} {format_bytes(size)}" for what, size in memory.holders[:NUM_HOLDERS])
    return Point(row.row_id, row.source, peak.expected, float(row.peak_bytes or 0), peak.upper, took, holders)


def share_above(points: Sequence[Point]) -> float:
    """Share of rows whose measured peak is above the upper bound."""
    return sum(point.measured > point.upper for point in points) / len(points)


def line(points: Sequence[Point], source: str) -> dict[str, float]:
    """The numbers of one source; "left_out" with a factor fitted on the others."""
    own = [point for point in points if point.source == source]
    factor = common_factor([point for point in points if point.source != source])
    return {
        "rows": len(own),
        "median": statistics.median(abs(point.error) for point in own),
        "largest": max(abs(point.error) for point in own),
        "bias": statistics.median(point.error for point in own),
        "factor": factor,
        "left_out": statistics.median(abs(factor * point.predicted / point.measured - 1) for point in own),
        "share_above": share_above(own),
        "slowest_s": max(point.seconds for point in own),
    }


def common_factor(points: Sequence[Point]) -> float:
    """What predictions would be multiplied with so that sources, each by its median, are met on average."""
    names = {point.source for point in points}
    medians = [
        statistics.median(point.measured / point.predicted for point in points if point.source == name)
        for name in names
    ]
    return statistics.fmean(medians) if medians else 1.0


def show(result: dict[str, object], points: Sequence[Point], num_worst: int) -> None:
    """The table, for people."""
    heads = ("rows", "median", "largest", "bias", "left out", "above", "slowest")
    print(f"{'':20}" + "".join(f"{head:>10}" for head in heads), file=sys.stderr)
    for source in sorted({point.source for point in points}):
        found = line(points, source)
        shares = [found[key] for key in ("median", "largest", "bias", "left_out", "share_above")]
        cells = "".join(f"{share:10.1%}" for share in shares)
        print(f"{source:20}{found['rows']:10.0f}{cells}{found['slowest_s'] * 1e3:7.1f} ms", file=sys.stderr)
    print(
        f"average over sources of the median: {result['median_error']:.1%} (limit {LIMIT:.0%}); one factor fitted on "
        f"the others: {result['median_error_left_out']:.1%}; rows above the bound: {result['share_above']:.1%} "
        f"(limit {ABOVE_LIMIT:.0%})",
        file=sys.stderr,
    )
    for point in sorted(points, key=lambda point: -abs(point.error))[:num_worst]:
        print(
            f"  {point.row_id}: {format_bytes(point.predicted)} for {format_bytes(point.measured)} "
            f"({point.error:+.1%}): {point.holders}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    raise SystemExit(main())
