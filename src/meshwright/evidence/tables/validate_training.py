"""`validate training`: every row of tables of measured training runs, predicted, beside what was measured.

A row becomes a job (plan and cluster), a job a prediction; equal jobs are predicted once. Rows that cannot be planned
or predicted are kept with the reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.costs.step.profile import StepFit
from meshwright.evidence.tables.job import TrainingJob, job_of
from meshwright.evidence.tables.memory_column import column_of, peak_of
from meshwright.evidence.tables.score import RowPrediction, Summary, memory_error, score_table
from meshwright.evidence.tables.table import TrainingRow, UnreadRow, columns_of, read_lines
from meshwright.prediction.memory_estimate import MemoryEstimate, estimate_memory
from meshwright.prediction.memory_limit import fit_probability
from meshwright.prediction.own_runs.trait import run_traits
from meshwright.prediction.predicted import predict
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction

log = logging.getLogger(__name__)
ID_COLUMN = "row_id"  # a table without it is none of measured runs, such as times of single stages

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LayoutPrediction:
    """Seconds of a step with their interval, `memory` (None: it is not known), `parts`, seconds of its busiest device by kind
    of work, and `traits`, what the plan is in numbers."""

    step: Prediction
    memory: MemoryEstimate | None = None
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    traits: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ReadTables:
    """What stands in some tables: rows, rows that cannot be read, and files that hold no measured runs."""

    rows: tuple[TrainingRow, ...]
    unread: tuple[UnreadRow, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Validation:
    """The tables, what was predicted of their rows in the same order, and the scores."""

    tables: ReadTables
    predictions: tuple[RowPrediction, ...]
    summary: Summary

    def to_rows(self) -> list[dict[str, Any]]:
        """One mapping a row for --json: the prediction, and of the row what is needed to group it. What could not be read
        is not among them: there is nothing that a prediction could be compared with."""
        return [
            {
                **prediction.to_dict(),
                "source": row.source,
                "is_core": row.is_core,
                "measured_peak_bytes": row.peak_bytes,
                "memory_error": memory_error(row, prediction),
            }
            for row, prediction in zip(self.tables.rows, self.predictions, strict=True)
        ]

    def assumptions(self) -> list[str]:
        """What was assumed, with the number of rows that it was assumed of; most frequent first."""
        counts = Counter(line for prediction in self.predictions for line in prediction.assumptions)
        return [f"{line} ({number} rows)" for line, number in counts.most_common()]


Predictor = Callable[..., list[RowPrediction]]


def validate_training(
    paths: Sequence[str | Path], *, progress: Progress | None = None, predictor: Predictor | None = None
) -> Validation:
    """Predict every row of these tables and score the predictions.

    Args:
        paths: CSV files of the calibration schema. A file without row ids is left out where others have them.
        progress: told the row's id and the share that is done.
        predictor: called as ``predictor(rows, progress=progress)`` in place of `predict_rows`.

    Raises SpecError: no file, no row that can be read, a column is missing, or a row stands there twice.
    """
    tables = read_rows(paths)
    predictions = (predictor or predict_rows)(tables.rows, progress=progress)
    return Validation(tables, tuple(predictions), score_table(tables.rows, predictions))


def read_rows(paths: Sequence[str | Path]) -> ReadTables:
    """What stands in the tables. Raises SpecError as `validate_training`."""
    if not paths:
        raise SpecError("no table is given", allowed="one or more CSV files of measured training runs")
    files = [Path(path) for path in paths]
    others = [path for path in files if ID_COLUMN not in columns_of(path)]
    if len(others) == len(files):  # nothing would be left: let the reader say what is missing
        others = []
    lines = [line for path in files if path not in others for line in read_lines(path)]
    rows = tuple(line for line in lines if isinstance(line, TrainingRow))
    unread = tuple(line for line in lines if isinstance(line, UnreadRow))
    if not rows and unread:
        raise SpecError(f"no row can be read, the first because of {unread[0].why}")
    if not rows:
        raise SpecError(
            f"no row stands in {', '.join(map(str, files))}", allowed="tables with one measured run a row"
        )
    counts = Counter(row.row_id for row in rows)
    twice = next((row_id for row_id, number in counts.items() if number > 1), None)
    if twice is not None:
        raise SpecError(
            f"row {twice} stands in the tables more than once",
            allowed="every row_id once",
            next="give every table once",
        )
    return ReadTables(rows, unread, tuple(str(path) for path in others))


def predict_rows(
    rows: Sequence[TrainingRow],
    *,
    progress: Progress | None = None,
    plan_row: Callable[[TrainingRow], TrainingJob] | None = None,
    predict: Callable[[Plan, ClusterSpec], LayoutPrediction] | None = None,
) -> list[RowPrediction]:
    """What the simulator says of each row, in the order of `rows`. Equal plans on equal clusters are predicted once.

    Args:
        plan_row: makes the job of a row; raises a MeshwrightError with the reason where it cannot (None: `job_of`).
        predict: predicts a plan on a cluster (None: `predict_layout`).
    """
    make_job, predict_plan = plan_row or job_of, predict or predict_layout
    known: dict[tuple[Plan, ClusterSpec], LayoutPrediction | MeshwrightError] = {}
    found = []
    for number, row in enumerate(rows):
        if progress is not None:
            progress(row.row_id, number / len(rows))
        try:
            job = make_job(row)
        except MeshwrightError as error:
            found.append(_skipped(row, error))
            continue
        key = (_nameless(job.plan), job.cluster)
        if key not in known:
            known[key] = _predicted(predict_plan, job.plan, job.cluster)
        found.append(_of_row(job, known[key]))
    log.debug("%d rows, %d distinct layouts", len(rows), len(known))
    return found


def predict_layout(plan: Plan, cluster: ClusterSpec, fit: StepFit | None = None) -> LayoutPrediction:
    """The simulator's step and memory of a plan, by these constants (None: the package's). Raises what these raise."""
    schedule = catalog.find_schedule(plan.schedule)  # an unknown name is refused before anything is lowered
    predicted = predict(plan, cluster, schedule=schedule, extrapolate=True, fit=fit)
    memory = estimate_memory(plan, cluster, schedule)
    return LayoutPrediction(
        predicted.step,
        memory=memory,
        parts=predicted.parts,
        traits=run_traits(plan, cluster),
    )


def _nameless(plan: Plan) -> Plan:
    """The plan without where its model comes from: rows of one configuration differ in nothing else."""
    return replace(plan, model=replace(plan.model, name="", source=""))


def _predicted(
    predict: Callable[[Plan, ClusterSpec], LayoutPrediction], plan: Plan, cluster: ClusterSpec
) -> LayoutPrediction | MeshwrightError:
    """The prediction, or why there is none: the next row of that layout has the same reason."""
    try:
        return predict(plan, cluster)
    except MeshwrightError as error:
        return error


def _of_row(job: TrainingJob, layout: LayoutPrediction | MeshwrightError) -> RowPrediction:
    row = job.row
    if isinstance(layout, MeshwrightError):
        return _skipped(row, layout)
    memory, capacity = layout.memory, job.cluster.memory_bytes
    peak = None if memory is None else peak_of(column_of(row), memory, job.plan, capacity, row.peak_bytes)
    return RowPrediction(
        row_id=row.row_id,
        measured_s=row.measured_s,
        predicted_s=layout.step.value,
        low_s=layout.step.low,
        high_s=layout.step.high,
        basis=layout.step.basis,
        predicted_peak_bytes=None if peak is None else peak.expected,
        upper_peak_bytes=None if peak is None else peak.upper,
        peak_chance=None if peak is None else peak.chance,
        fit_chance=None if memory is None else fit_probability(memory, capacity),
        assumptions=tuple(job.assumptions),
        parts=layout.parts,
        traits=layout.traits,
    )


def _skipped(row: TrainingRow, error: MeshwrightError) -> RowPrediction:
    """The reason on one line."""
    return RowPrediction(row.row_id, row.measured_s, skipped=" ".join(str(error).split()))
