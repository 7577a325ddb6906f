"""`validate unseen`: tables of measured runs, every source predicted without itself, judged as a user would meet it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.evidence.tables.score import (
    LEAST_ROWS,
    LONG_SEQUENCE,
    Score,
    Scored,
    by_source,
    mean,
    newest_releases,
    score,
)
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import Progress, ReadTables, read_rows
from meshwright.evidence.unseen import few_rows
from meshwright.evidence.unseen.left_out import from_few_devices, has_many_devices, is_known, left_out
from meshwright.evidence.unseen.ordering import ORDERS, JobOrder, orders
from meshwright.evidence.unseen.reliability import Reliability, reliability

DRAWS = 50
FEW = (3, 10)  # measured rows of one's own
LEARNERS: Mapping[str, few_rows.Learn] = {
    "by Bayes' rule": few_rows.by_posterior,
    "median ratio": few_rows.by_median,
}
NEWEST_CHIPS = ("b200", "b300", "gb200", "gb300", "mi325x", "mi350x", "mi355x")
KINDS: Mapping[str, Callable[[TrainingRow], bool]] = {
    "dense": lambda row: not row.is_moe,
    "experts": lambda row: row.is_moe,
    f"sequences above {LONG_SEQUENCE:,}": lambda row: row.sequence_length > LONG_SEQUENCE,
    "float8": lambda row: row.is_float8,
    "newest chips": lambda row: row.text("gpu").lower().startswith(NEWEST_CHIPS),
    "AMD": lambda row: row.text("gpu").lower().startswith("mi"),
    "sources that no fit has seen": lambda row: not is_known(row.source),
}


@dataclass(frozen=True)
class Limit:
    """One number, and the least and the most that it should be; a share, or a count or correlation."""

    name: str
    value: float | None
    most: float = float("inf")
    least: float = float("-inf")
    is_share: bool = True

    @property
    def holds(self) -> bool:
        """Is it known and within its limits?"""
        return self.value is not None and self.least <= self.value <= self.most

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json; an open end is null."""
        ends = {
            "least": None if self.least == float("-inf") else self.least,
            "most": None if self.most == float("inf") else self.most,
        }
        return {"name": self.name, "value": self.value, **ends, "holds": self.holds}


@dataclass(frozen=True)
class Unseen:
    """What was found.

    Attributes:
        tables: what was read; scored are its core rows, one per configuration, of the newest release.
        scored: rows by the constants without their source. sources, kinds: their scores.
        few: number of one's own rows -> way to learn from them -> source -> median error of the others.
        beyond: source -> median error above MOST_FITTED_DEVICES devices of what rows up to there say.
        jobs: name of an order -> what it is worth in each job.
        chances: of memory, and how often they came true.
        limits: what should hold.
    """

    tables: ReadTables
    scored: tuple[Scored, ...]
    sources: Mapping[str, Score]
    kinds: Mapping[str, Score]
    few: Mapping[int, Mapping[str, Mapping[str, float]]]
    beyond: Mapping[str, float]
    jobs: Mapping[str, Sequence[JobOrder]]
    chances: Reliability
    limits: Sequence[Limit]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json; errors are shares."""
        return {
            "rows": [{**one.to_dict(), "source": row.source} for row, one in self.scored],
            "sources": {name: each.to_dict() for name, each in self.sources.items()},
            "kinds": {name: each.to_dict() for name, each in self.kinds.items()},
            "few_rows": {str(number): each for number, each in self.few.items()},
            "beyond_few_devices": dict(self.beyond),
            "jobs": {name: [asdict(job) for job in found] for name, found in self.jobs.items()},
            "memory_chances": {**asdict(self.chances), "error": self.chances.error},
            "limits": [limit.to_dict() for limit in self.limits],
            "unread": [asdict(row) for row in self.tables.unread],
            "left_out": list(self.tables.left_out),
        }


def validate_unseen(paths: Sequence[str | Path], *, progress: Progress | None = None) -> Unseen:
    """Predict every core row of these tables without its source, and judge what was found.

    Args:
        paths: CSV files of the calibration schema, or folders of them.
        progress: told a row's id and the share that is done.

    Raises SpecError as `validate_training`.
    """
    tables = read_rows(_files(paths))
    rows = newest_releases(row for row in tables.rows if row.is_core)
    scored = left_out(rows, progress)
    sources = by_source(scored)
    kinds = {name: [pair for pair in scored if is_in(pair[0])] for name, is_in in KINDS.items()}
    few = {number: _few(sources, number) for number in FEW}
    beyond = _beyond(rows, progress)
    jobs = {name: orders(scored, order) for name, order in ORDERS.items()}
    of_sources = {name: score(pairs) for name, pairs in sorted(sources.items())}
    of_kinds = {name: score(pairs) for name, pairs in kinds.items()}
    chances = reliability(scored)
    limits = _limits(of_sources, of_kinds, kinds, few, beyond, jobs[next(iter(ORDERS))], chances)
    return Unseen(tables, tuple(scored), of_sources, of_kinds, few, beyond, jobs, chances, limits)


def _files(paths: Sequence[str | Path]) -> list[Path]:
    """The tables of folders one by one, and files as they are."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(path.glob("*.csv")) if path.is_dir() else [path]
    return found


def _few(sources: Mapping[str, Sequence[Scored]], number: int) -> dict[str, dict[str, float]]:
    """Every way to learn from so many rows: source -> median error; sources with too few rows are not there."""
    found: dict[str, dict[str, float]] = {}
    for name, learn in LEARNERS.items():
        errors = {
            source: few_rows.median_error(pairs, number, DRAWS, learn) for source, pairs in sources.items()
        }
        found[name] = {source: error for source, error in errors.items() if error is not None}
    return found


def _beyond(rows: Sequence[TrainingRow], progress: Progress | None) -> dict[str, float]:
    """Source -> median error of rows of many devices, by constants of rows of few, corrected by the source's own of these."""
    found = {}
    for source, pairs in by_source(from_few_devices(rows, progress)).items():
        predicted = [pair for pair in pairs if pair[1].predicted_s]
        own = [pair for pair in predicted if not has_many_devices(pair[0])]
        above = [pair for pair in predicted if has_many_devices(pair[0])]
        num_skipped = sum(has_many_devices(row) for row, _ in pairs) - len(above)
        if own:
            measured = np.array([row.measured_s for row, _ in above])
            errors = np.abs(few_rows.by_posterior(own)(above) / measured - 1.0) if above else []
            found[source] = float(np.median([*errors, *[1.0] * num_skipped]))
    return found


def _limits(
    of_sources: Mapping[str, Score],
    of_kinds: Mapping[str, Score],
    kinds: Mapping[str, Sequence[Scored]],
    few: Mapping[int, Mapping[str, Mapping[str, float]]],
    beyond: Mapping[str, float],
    jobs: Sequence[JobOrder],
    chances: Reliability,
) -> list[Limit]:
    """What should hold of rows that nobody fitted. Averages are of sources, each weighing alike."""
    dense, amd, experts = (_medians(kinds[name]) for name in ("dense", "AMD", "experts"))
    counts = Counter(row.source for row, _ in kinds["dense"])
    large = [error for source, error in dense.items() if counts[source] >= LEAST_ROWS]
    found = [
        Limit("dense: average over sources of the median error", mean(dense.values()), 0.07),
        Limit(f"dense: worst source of {LEAST_ROWS} rows or more", max(large, default=None), 0.15),
        Limit("dense: pooled median error, each source weighing alike", _pooled(kinds["dense"]), 0.06),
        Limit("dense: within 10 %, each source weighing alike", _near(kinds["dense"]), least=0.75),
        Limit("experts: average over sources of the median error", mean(experts.values()), 0.15),
        Limit("AMD: average over sources of the median error", mean(amd.values()), 0.15),
    ]
    for (number, ways), most in zip(few.items(), (0.045, 0.035), strict=True):
        ours, null = (ways[name] for name in LEARNERS)
        is_dense = dense.keys() & ours.keys()
        found.append(
            Limit(
                f"dense, {number} rows of one's own: average over sources",
                mean(ours[s] for s in sorted(is_dense)),
                most,
            )
        )
        behind = sum(ours[source] >= null[source] for source in ours)
        found.append(
            Limit(
                f"{number} rows of one's own: sources behind their median ratio",
                float(behind),
                0.0,
                is_share=False,
            )
        )
    found.append(
        Limit("above 64 devices from 64 and fewer: worst source", max(beyond.values(), default=None), 0.10)
    )
    found += [
        Limit(f"inside the 80 % interval: {name}", each.coverage, 0.88, 0.72)
        for name, each in of_kinds.items()
    ]
    memory = [each for each in of_sources.values() if each.num_memory_rows]
    found += [
        Limit(
            "memory: average over sources of the median error",
            mean(each.memory_error for each in memory),
            0.08,
        ),
        Limit("memory: rows within the bound", _within_bound(memory), least=0.95),
        Limit("memory: chances, mean distance from observed shares", chances.error, 0.10),
        Limit(
            "order of layouts: regret of the first choice, median job",
            _median([job.regret for job in jobs]),
            0.03,
        ),
        Limit("order of layouts: regret, worst job", max((job.regret for job in jobs), default=None), 0.10),
        Limit(
            "order of layouts: rank correlation, median job",
            _median([job.correlation for job in jobs]),
            least=0.9,
            is_share=False,
        ),
    ]
    return found


def _medians(pairs: Sequence[Scored]) -> dict[str, float]:
    """Source -> median error."""
    return {source: score(own).median_error or 0.0 for source, own in by_source(pairs).items()}


def _pooled(pairs: Sequence[Scored]) -> float | None:
    """The median error of rows of which each weighs as one of its source."""
    if not pairs:
        return None
    errors = np.array([abs(prediction.error) for _, prediction in pairs])
    counts = Counter(row.source for row, _ in pairs)
    weights = np.array([1.0 / counts[row.source] for row, _ in pairs])
    order = np.argsort(errors, kind="stable")
    reached = np.cumsum(weights[order])
    return float(errors[order][np.searchsorted(reached, reached[-1] / 2)])


def _near(pairs: Sequence[Scored]) -> float | None:
    """The share of rows within 10 %, averaged over sources."""
    return mean(score(own).within_10 for own in by_source(pairs).values())


def _within_bound(memory: Sequence[Score]) -> float | None:
    """Of all rows with a measured peak."""
    number = sum(each.num_memory_rows for each in memory)
    return (
        1.0 - sum((each.above_upper or 0.0) * each.num_memory_rows for each in memory) / number
        if number
        else None
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
