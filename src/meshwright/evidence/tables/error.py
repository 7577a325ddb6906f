"""Errors of predicted step times and memory peaks, of one row and of a set of rows. Pure functions.

Errors are predicted / measured - 1. A row that could not be predicted counts as an error of 100 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.evidence.tables.table import TrainingRow

SKIPPED_ERROR = -1.0  # predicted / measured - 1 of a row that was not predicted
NEAR, FAR = 0.10, 0.20  # errors up to which the shares of rows are counted


@dataclass(frozen=True)
class RowPrediction:
    """What a model says of one row: seconds of a step and bytes of the fullest device, or why it says nothing."""

    row_id: str
    measured_s: float
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    basis: str = ""
    predicted_peak_bytes: float | None = None
    upper_peak_bytes: float | None = None
    skipped: str | None = None
    assumptions: tuple[str, ...] = ()

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
