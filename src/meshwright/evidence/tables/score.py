"""Scores predictions of training steps against tables of measured runs: by source, by kind of row, by pairs of layouts.

What is scored are core rows, one per configuration (the newest release), per source and then averaged over sources:
one source alone has more than half of the rows of the calibration set. Any model's predictions can be scored.
Errors are predicted / measured - 1. A row that could not be predicted counts as an error of 100 %.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from meshwright.evidence.tables.table import TrainingRow
from meshwright.specs.error import SpecError

SKIPPED_ERROR = -1.0  # predicted / measured - 1 of a row that was not predicted
NEAR, FAR = 0.10, 0.20  # errors up to which the shares of rows are counted
LEAST_ROWS = 5  # a source with fewer rows is shown, but is never called the worst
LONG_SEQUENCE = 8192  # tokens; longer ones are a line of their own
DISTINCT_STEPS = (
    0.06  # releases of one configuration differ by 6 % in the median: less is no order of layouts
)
JOB_COLUMNS = ("model", "layers", "hidden", "vocab", "gpus", "gpu", "seq", "global_batch_seqs", "precision")
LAYOUT_COLUMNS = (
    "tp", "sp", "pp", "dp", "cp", "ep", "vpp", "zero", "micro_batch_seqs", "recompute", "schedule", "extras",
)  # fmt: skip


@dataclass(frozen=True)
class RowPrediction:
    """What a model says of one row: seconds of a step and bytes of the fullest device, or why it says nothing. `parts`:
    seconds of the busiest device by kind of work, and `traits`, what the plan is in numbers, where the model knows them.
    `peak_chance`: that the peak is no more than was measured; `fit_chance`: that the run fits on its devices."""

    row_id: str
    measured_s: float
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    basis: str = ""
    predicted_peak_bytes: float | None = None
    upper_peak_bytes: float | None = None
    peak_chance: float | None = None
    fit_chance: float | None = None
    skipped: str | None = None
    assumptions: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    traits: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def error(self) -> float:
        """predicted / measured - 1; -1 (100 %) where nothing was predicted."""
        return SKIPPED_ERROR if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0

    @property
    def is_covered(self) -> bool | None:
        """Is the measurement inside the interval? None where there is none."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def half_width(self) -> float | None:
        """Half of the interval, relative to the prediction."""
        if self.low_s is None or self.high_s is None or not self.predicted_s:
            return None
        return (self.high_s - self.low_s) / 2.0 / self.predicted_s

    def to_dict(self) -> dict[str, Any]:
        """A row of --json, in SI units."""
        return {
            "row_id": self.row_id,
            "predicted_s": self.predicted_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "measured_s": self.measured_s,
            "error": self.error,
            "basis": self.basis or None,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "upper_peak_bytes": self.upper_peak_bytes,
            "peak_chance": self.peak_chance,
            "fit_chance": self.fit_chance,
            "skipped": self.skipped,
            "assumptions": list(self.assumptions),
        }


Scored = tuple[TrainingRow, RowPrediction]


@dataclass(frozen=True)
class Score:
    """Errors of some rows, as shares (0.05 is 5 %); None where there is nothing to say it of.

    `bias` is the mean signed error of the predicted rows; skipped ones have no direction. `coverage` and `half_width`
    (median, relative to the prediction) are of the interval. Memory: rows with a measured peak; one without a
    prediction counts as 100 % and as above the bound; None where no row at all has a predicted peak.
    """

    num_rows: int
    num_skipped: int
    median_error: float | None
    mean_error: float | None
    within_10: float | None
    within_20: float | None
    bias: float | None
    coverage: float | None
    half_width: float | None
    num_memory_rows: int
    memory_error: float | None
    above_upper: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json."""
        return dict(vars(self))


def score(scored: Sequence[Scored]) -> Score:
    """Errors of these rows."""
    predictions = [prediction for _, prediction in scored]
    sizes = [abs(prediction.error) for prediction in predictions]
    memory = [pair for pair in scored if pair[0].peak_bytes]
    has_memory = any(prediction.predicted_peak_bytes is not None for _, prediction in memory)
    return Score(
        num_rows=len(scored),
        num_skipped=sum(prediction.predicted_s is None for prediction in predictions),
        median_error=_median(sizes),
        mean_error=mean(sizes),
        within_10=mean(float(size <= NEAR) for size in sizes),
        within_20=mean(float(size <= FAR) for size in sizes),
        bias=mean(one.error for one in predictions if one.predicted_s is not None),
        coverage=mean(one.is_covered for one in predictions),
        half_width=_median([one.half_width for one in predictions if one.half_width is not None]),
        num_memory_rows=len(memory),
        memory_error=_median([abs(memory_error(*pair) or 0.0) for pair in memory]) if has_memory else None,
        above_upper=mean(float(_is_above_upper(*pair)) for pair in memory) if has_memory else None,
    )


def memory_error(row: TrainingRow, prediction: RowPrediction) -> float | None:
    """predicted / measured peak - 1; -1 where it was not predicted, None where it was not measured."""
    if not row.peak_bytes:
        return None
    if prediction.predicted_peak_bytes is None:
        return SKIPPED_ERROR
    return prediction.predicted_peak_bytes / row.peak_bytes - 1.0


def _is_above_upper(row: TrainingRow, prediction: RowPrediction) -> bool:
    return prediction.upper_peak_bytes is None or (row.peak_bytes or 0.0) > prediction.upper_peak_bytes


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known; None of nothing."""
    known = [float(value) for value in values if value is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class Line:
    """One selection of rows: pooled, and by source."""

    pooled: Score
    by_source: Mapping[str, Score]

    @property
    def average_median_error(self) -> float | None:
        """Mean over sources of their median errors."""
        return mean(score.median_error for score in self.by_source.values())

    @property
    def average_bias(self) -> float | None:
        """Mean over sources of the size of their bias."""
        return mean(abs(score.bias) for score in self.by_source.values() if score.bias is not None)

    @property
    def average_memory_error(self) -> float | None:
        """Mean over the sources that report peaks of their median errors of memory."""
        return mean(score.memory_error for score in self.by_source.values())

    @property
    def worst_source(self) -> str | None:
        """The source of five or more rows with the largest median error."""
        medians = {
            name: score.median_error or 0.0
            for name, score in self.by_source.items()
            if score.num_rows >= LEAST_ROWS
        }
        return max(medians, key=lambda name: medians[name], default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json; the numbers of all rows, and what is averaged over sources."""
        averages = ("average_median_error", "average_bias", "average_memory_error", "worst_source")
        return {
            **self.pooled.to_dict(),
            **{name: getattr(self, name) for name in averages},
            "median_error_by_source": {name: score.median_error for name, score in self.by_source.items()},
        }


@dataclass(frozen=True)
class Summary:
    """What `validate training` says of a table.

    Attributes:
        num_rows, num_core_rows, num_core_skipped: counts before one row per configuration is chosen.
        sources: scored rows by source. lines: selections by name, "core" (all that is scored) first.
        num_pairs, pairs_ordered: layouts of one job that differ by more than 6 %, and the share in the right order.
    """

    num_rows: int
    num_core_rows: int
    num_core_skipped: int
    sources: Mapping[str, Score]
    lines: Mapping[str, Line]
    num_pairs: int
    pairs_ordered: float | None

    @property
    def skipped_share(self) -> float:
        """Share of core rows that were not predicted."""
        return self.num_core_skipped / self.num_core_rows if self.num_core_rows else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "num_rows": self.num_rows,
            "num_core_rows": self.num_core_rows,
            "num_scored_rows": self.lines["core"].pooled.num_rows,
            "num_core_skipped": self.num_core_skipped,
            "skipped_share": self.skipped_share,
            "sources": {name: score.to_dict() for name, score in self.sources.items()},
            "lines": {name: line.to_dict() for name, line in self.lines.items()},
            "pairs": {"num_pairs": self.num_pairs, "ordered_share": self.pairs_ordered},
        }


def score_table(rows: Sequence[TrainingRow], predictions: Iterable[RowPrediction]) -> Summary:
    """Score any model's predictions of these rows; they are matched by `row_id`, the order does not matter.

    Raises SpecError where a row has no prediction (one that was skipped has one, too).
    """
    by_id = {prediction.row_id: prediction for prediction in predictions}
    missing = [row.row_id for row in rows if row.row_id not in by_id]
    if missing:
        raise SpecError(
            f"{len(missing)} rows have no prediction, the first is {missing[0]}",
            allowed="one RowPrediction a row; one that cannot be predicted has `skipped`",
        )
    core = [row for row in rows if row.is_core]
    scored = [(row, by_id[row.row_id]) for row in newest_releases(core)]
    lines = {name: _line([pair for pair in scored if is_in(pair[0])]) for name, is_in in LINES.items()}
    newest = _newest_of_models([row for row, _ in scored])
    lines["moe_newest_release"] = _line(
        [pair for pair in scored if pair[0].is_moe and pair[0].row_id in newest]
    )
    lines["not_core"] = _line([(row, by_id[row.row_id]) for row in rows if not row.is_core])
    num_pairs, ordered = _ordered_pairs(scored)
    return Summary(
        num_rows=len(rows),
        num_core_rows=len(core),
        num_core_skipped=sum(by_id[row.row_id].predicted_s is None for row in core),
        sources=lines["core"].by_source,
        lines=lines,
        num_pairs=num_pairs,
        pairs_ordered=ordered,
    )


LINES: Mapping[str, Callable[[TrainingRow], bool]] = {
    "core": lambda row: True,
    "dense": lambda row: not row.is_moe,
    "moe": lambda row: row.is_moe,
    "float8": lambda row: row.is_float8,
    "long_sequences": lambda row: row.sequence_length > LONG_SEQUENCE,
}


def newest_releases(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """One row per configuration: that of the newest release, the first where releases are equal or not known."""
    kept: dict[tuple[str, str], TrainingRow] = {}
    for row in rows:
        held = kept.get(row.config_key)
        if held is None or release_number(row.release) > release_number(held.release):
            kept[row.config_key] = row
    return list(kept.values())


def release_number(release: str) -> tuple[int, ...]:
    """The numbers of a release, to order them: "26.04.01" is (26, 4, 1); an unknown one comes first."""
    return tuple(int(number) for number in re.findall(r"\d+", release))


def _line(scored: Sequence[Scored]) -> Line:
    sources = by_source(scored)
    return Line(score(scored), {source: score(pairs) for source, pairs in sorted(sources.items())})


def by_source(scored: Iterable[Scored]) -> dict[str, list[Scored]]:
    """Source -> its rows, in the order in which they come."""
    found: dict[str, list[Scored]] = {}
    for pair in scored:
        found.setdefault(pair[0].source, []).append(pair)
    return found


def _newest_of_models(rows: Sequence[TrainingRow]) -> Collection[str]:
    """Ids of the rows of the newest release of each (source, model, chip): settings change with releases, too."""

    def key(row: TrainingRow) -> tuple[str, str, str]:
        return row.source, row.values.get("model", ""), row.values.get("gpu", "")

    newest: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for row in rows:
        newest[key(row)] = max(newest.get(key(row), ()), release_number(row.release))
    return {row.row_id for row in rows if release_number(row.release) == newest[key(row)]}


def _ordered_pairs(scored: Sequence[Scored]) -> tuple[int, float | None]:
    """Pairs of layouts of one job whose steps differ by more than DISTINCT_STEPS; the share predicted in that order.

    A pair with a skipped row, or with equal predictions, is not in order.
    """
    jobs: dict[tuple[str, ...], list[Scored]] = {}
    for row, prediction in scored:
        facts = (row.values.get(column, "") for column in JOB_COLUMNS)
        jobs.setdefault((row.source, row.release, *facts), []).append((row, prediction))
    right = []
    for members in jobs.values():
        for (first, of_first), (second, of_second) in combinations(members, 2):
            steps = sorted((first.measured_s, second.measured_s))
            if _layout(first) == _layout(second) or steps[1] <= steps[0] * (1.0 + DISTINCT_STEPS):
                continue
            a, b = of_first.predicted_s, of_second.predicted_s
            is_known = a is not None and b is not None and a != b
            right.append(float(is_known and (a > b) == (first.measured_s > second.measured_s)))  # type: ignore[operator]
    return len(right), mean(right)


def _layout(row: TrainingRow) -> tuple[str, ...]:
    return tuple(row.values.get(column, "") for column in LAYOUT_COLUMNS)
