"""Prints how good a choice by prediction is on measured jobs: regret, pairs in order, measured rows excluded as too big.

A job has one source, model, device and count, sequence length, global batch and precision, and was measured in two layouts
or more (of one layout the newest release). Its whole source is left out of the fit; fitted are core rows of the others.
Our choice is the least predicted step, ties count as the worst of the tied, rows that cannot be predicted are never chosen
and order no pair. Beside it: the first row of the table, a random one, and the one with most data parallelism (the last two
in the mean of what ties; all were measured, so all fit). Memory: the planner's rule on every row that can be planned.
The numbers that a change must not make worse are the claims; exit status 3 where one does not hold. About a minute.

Run: python benchmarks/plan_quality.py [TABLE.csv ...]   (tables as `meshwright validate training` reads them)
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plan_regret import (
    BASELINES,
    MeasuredJob,
    MemoryCheck,
    PairOrder,
    chosen_regret,
    measured_jobs,
    memory_checks,
    most_replicas,
    pair_order,
)

from meshwright.evidence.tables.score import newest_releases
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.specs.units import format_bytes

# Where the tables lie when they are beside the checkout.
BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "training"
REGRET_LIMIT = 0.02  # of the median job
ORDER_LIMIT = 0.90  # of the pairs that differ by more than 6 %
FIT_LIMIT = 1.0  # of the measured rows
OURS = "meshwright"
HALF = 0.5  # what a tied pair counts where it is not ours


@dataclass(frozen=True)
class Claim:
    """A share, the least or most that it may be, and of how many things it is."""

    name: str
    value: float | None
    limit: float
    num: int
    is_least: bool = False

    @property
    def holds(self) -> bool:
        """Is it known and within the limit?"""
        if self.value is None:
            return False
        return self.value >= self.limit if self.is_least else self.value <= self.limit

    def line(self) -> str:
        """A row of the table of claims."""
        bound = f"{'at least' if self.is_least else 'at most'} {100 * self.limit:g} %"
        ratio = "" if self.value is None else f"{self.value / self.limit:.2f}"
        verdict = "holds" if self.holds else "FAILS"
        return f"| {self.name} | {self.num} | {bound} | {percent(self.value)} % | {ratio} | {verdict} |"


def main() -> int:
    """The tables on stdout; 0 where all claims hold or there is nothing to score, 3 where one does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", type=Path, nargs="*", default=sorted(BESIDE.glob("*.csv")))
    tables = parser.parse_args().tables
    if not tables:
        print(f"skipped: no tables are given and {BESIDE} has none", file=sys.stderr)
        return 0
    rows = read_rows(tables).rows
    fitted = {row.row_id for row in newest_releases(row for row in rows if row.is_core)}
    jobs = measured_jobs(rows, [row for row in rows if row.row_id in fitted], say)
    checks, skipped = memory_checks(rows)
    claims = claims_of(jobs, checks)
    print(
        "## Claims\n",
        "| claim | n | bound | ours | ours / bound | |",
        "|---|---:|---|---:|---:|---|",
        sep="\n",
    )
    print(*(claim.line() for claim in claims), "", sep="\n")
    print("## Choices\n", *choices(jobs), "", sep="\n")
    print("## Jobs\n", *job_lines(jobs), "", sep="\n")
    print("## Memory\n", *memory_lines(checks, skipped), sep="\n")
    return 0 if all(claim.holds for claim in claims) else 3


def say(text: str, share: float) -> None:
    """Progress on stderr."""
    print(f"{100 * share:3.0f} % {text}", file=sys.stderr, flush=True)


def claims_of(jobs: Sequence[MeasuredJob], checks: Sequence[MemoryCheck]) -> list[Claim]:
    """What planning must reach."""
    regret = statistics.median(map(chosen_regret, jobs)) if jobs else None
    order = pair_order(jobs)
    fit = sum(check.rejection is None for check in checks) / len(checks) if checks else None
    return [
        Claim("median regret of our choice", regret, REGRET_LIMIT, len(jobs)),
        Claim("pairs that differ by > 6 % in order", order.share, ORDER_LIMIT, order.num_pairs, True),
        Claim("measured rows not excluded as too big", fit, FIT_LIMIT, len(checks), True),
    ]


def selections(jobs: Sequence[MeasuredJob]) -> Mapping[str, list[MeasuredJob]]:
    """Jobs by what they are for: all, of core rows only, those in which more differs than words, and every source."""
    core = [job for job in jobs if all(layout.is_core for layout in job.layouts)]
    found = {
        "all jobs": list(jobs),
        "core rows only": core,
        "degrees, microbatch, recompute differ": [job for job in jobs if not job.is_of_software],
    }
    for source in sorted({job.source for job in jobs}):
        found[source] = [job for job in jobs if job.source == source]
    return found


def choices(jobs: Sequence[MeasuredJob]) -> Iterator[str]:
    """Median, mean and worst regret of every choice, and its pairs."""
    yield "| jobs | choice | n | median regret % | mean % | worst % | pairs in order |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name, chosen in selections(jobs).items():
        for choice, regret in {OURS: chosen_regret, **BASELINES}.items():
            regrets = [regret(job) for job in chosen]
            if not regrets:
                continue
            cells = (statistics.median(regrets), statistics.fmean(regrets), max(regrets))
            numbers = " | ".join(map(percent, cells))
            yield f"| {name} | {choice} | {len(regrets)} | {numbers} | {_pairs(choice, chosen)} |"


def _pairs(choice: str, jobs: Sequence[MeasuredJob]) -> str:
    """Right pairs of all, for choices that order: ours, chance, and more data parallelism."""
    orders: Mapping[str, PairOrder] = {
        OURS: pair_order(jobs),
        "random (expected)": pair_order(jobs, lambda layout: 0.0, HALF),
        "most data parallel that fits": pair_order(jobs, most_replicas, HALF),
    }
    found = orders.get(choice)
    return "" if found is None else f"{found.num_right:g} of {found.num_pairs}"


def job_lines(jobs: Sequence[MeasuredJob]) -> Iterator[str]:
    """Every job, the worst choice first."""
    yield "| source | job | layouts | differ in | regret % | random % | measured s: best | most |"
    yield "|---|---|---:|---|---:|---:|---:|---:|"
    for job in sorted(jobs, key=lambda job: (-chosen_regret(job), job.source, job.name)):
        slowest = max(layout.measured_s for layout in job.layouts)
        random = BASELINES["random (expected)"](job)
        yield (
            f"| {job.source} | {job.name} | {len(job.layouts)} | {', '.join(job.differs_in)} | {percent(chosen_regret(job))} "
            f"| {percent(random)} | {job.best_s:.3f} | {slowest:.3f} |"
        )


def memory_lines(checks: Sequence[MemoryCheck], skipped: Mapping[str, str]) -> Iterator[str]:
    """How many rows fit, and every layout that is excluded though it was measured."""
    excluded = [check for check in checks if check.rejection is not None]
    told = [check for check in checks if check.is_told]
    others = [check for check in excluded if not check.is_told]
    yield f"{len(checks) - len(excluded)} of {len(checks)} rows are not excluded ({len(skipped)} cannot be planned)."
    yield f"Of {len(told)} rows that say what is recomputed: {sum(check.rejection is None for check in told)}."
    fit = sum(check.fits_recomputed for check in others)
    yield f"Of {len(others)} excluded rows that do not say it, {fit} fit when all is recomputed.\n"
    if excluded:
        yield "| model | devices | tp, pp, microbatch | recompute | needs | has | rows |"
        yield "|---|---|---|---|---:|---:|---|"
    for cells, row_ids in _by_layout(excluded).items():
        more = f" and {len(row_ids) - 1} more" if len(row_ids) > 1 else ""
        yield f"| {' | '.join(cells)} | {row_ids[0]}{more} |"


def _by_layout(excluded: Sequence[MemoryCheck]) -> dict[tuple[str, ...], list[str]]:
    """Cells of a line -> rows; releases of one layout need the same."""
    found: dict[tuple[str, ...], list[str]] = {}
    for check in excluded:
        plan, row, rejected = check.job.plan, check.job.row, check.rejection
        if rejected is None:
            continue
        cells = (
            row.text("model"),
            f"{row.text('gpus')}x{row.text('gpu')}",
            f"{plan.tp}, {plan.pp}, {plan.microbatch_size}",
            plan.recompute if check.is_told else f"not said: {plan.recompute}",
            format_bytes(rejected.needed_bytes),
            format_bytes(rejected.available_bytes),
        )
        found.setdefault(cells, []).append(row.row_id)
    return found


def percent(share: float | None) -> str:
    """A share in per cent with one digit; empty where there is none."""
    return "" if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    sys.exit(main())
