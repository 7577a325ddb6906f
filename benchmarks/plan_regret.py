"""Quality of planning on measured steps: regret of the predicted layout, pairs in order, rows excluded as too big.

A *job* is what somebody wants to train: source, model, device and their number, sequence length, global batch, precision.
Its *layouts* are the ways in which it was measured; of one layout the newest release counts. The *regret* of a choice is
its measured step over the best measured one, minus one. Pure functions; every prediction is by constants that were fitted
without any row of the job's source.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from fit.cross_validation import folds_of
from fit.step_data import Progress, measured_steps

from meshwright import catalog
from meshwright.evidence.tables import words
from meshwright.evidence.tables.job import TrainingJob, job_of
from meshwright.evidence.tables.score import DISTINCT_STEPS, JOB_COLUMNS, LAYOUT_COLUMNS, release_number
from meshwright.evidence.tables.table import TrainingRow
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import Rejection, estimated_rejection
from meshwright.prediction.predicted import predict
from meshwright.specs.error import MeshwrightError
from meshwright.specs.plan.plan import Plan

DIGITS = 9  # of a prediction: what differs by less differs by the rounding of sums, and is a tie
WORDS_ONLY = ("extras",)  # the layout column in which software is described, not how work is laid out
Score = Callable[["MeasuredLayout"], float]  # what a choice makes small


@dataclass(frozen=True)
class MeasuredLayout:
    """One way in which a job was measured.

    Attributes:
        row_id: of the table.
        measured_s, predicted_s: seconds of a step; None where nothing is predicted of the row.
        num_replicas: devices that work on sequences of their own (data parallelism).
        is_core: of a row that is specified well enough to be scored.
    """

    row_id: str
    measured_s: float
    predicted_s: float | None
    num_replicas: int
    is_core: bool = True


@dataclass(frozen=True)
class MeasuredJob:
    """A job with its layouts, two or more, in the order of the table.

    `differs_in` names the columns in which layouts differ; without it they may differ in anything.
    """

    source: str
    name: str
    layouts: tuple[MeasuredLayout, ...]
    differs_in: tuple[str, ...] = ()

    @property
    def best_s(self) -> float:
        """Measured seconds of the fastest layout."""
        return min(layout.measured_s for layout in self.layouts)

    @property
    def is_of_software(self) -> bool:
        """Do its layouts differ in words about the software only, not in degrees, microbatch, recompute or schedule?"""
        return bool(self.differs_in) and set(self.differs_in) <= set(WORDS_ONLY)

    def regret_of(self, layout: MeasuredLayout) -> float:
        """Measured step over the best measured one, minus one."""
        return layout.measured_s / self.best_s - 1.0

    def regrets(self, score: Score) -> list[float]:
        """Regrets of the layouts with the least score, as many as tie."""
        scores = [score(layout) for layout in self.layouts]
        least = min(scores)
        return [self.regret_of(one) for one, s in zip(self.layouts, scores, strict=True) if s == least]


def predicted(layout: MeasuredLayout) -> float:
    """Predicted seconds to DIGITS digits; infinite where nothing is predicted, so that it is chosen last."""
    return math.inf if layout.predicted_s is None else float(f"{layout.predicted_s:.{DIGITS}g}")


def most_replicas(layout: MeasuredLayout) -> float:
    """Less for more data parallelism."""
    return -float(layout.num_replicas)


def chosen_regret(job: MeasuredJob) -> float:
    """Regret of our choice, the least predicted step; of tied ones the worst."""
    return max(job.regrets(predicted))


# Choices to compare with; all layouts of a job were measured, so all fit. Where such a choice ties, the mean counts.
BASELINES: Mapping[str, Callable[[MeasuredJob], float]] = {
    "first of the table": lambda job: job.regret_of(job.layouts[0]),
    "random (expected)": lambda job: statistics.fmean(job.regrets(lambda layout: 0.0)),
    "most data parallel that fits": lambda job: statistics.fmean(job.regrets(most_replicas)),
}


@dataclass(frozen=True)
class PairOrder:
    """Pairs of layouts of one job whose measured steps differ by more than DISTINCT_STEPS; how many are in order."""

    num_pairs: int
    num_right: float

    @property
    def share(self) -> float | None:
        """In order; None where there is no pair."""
        return self.num_right / self.num_pairs if self.num_pairs else None


def pair_order(jobs: Iterable[MeasuredJob], score: Score = predicted, tie: float = 0.0) -> PairOrder:
    """How a score orders pairs; `tie` is what equal scores count, nothing for ours."""
    right = []
    for job in jobs:
        for first, second in combinations(sorted(job.layouts, key=lambda layout: layout.measured_s), 2):
            if second.measured_s <= first.measured_s * (1.0 + DISTINCT_STEPS):
                continue
            a, b = score(first), score(second)
            is_known = math.isfinite(a) and math.isfinite(b)
            right.append(0.0 if not is_known else tie if a == b else float(a < b))
    return PairOrder(len(right), sum(right))


def rows_by_job(rows: Iterable[TrainingRow]) -> list[tuple[TrainingRow, ...]]:
    """Rows of every job with two layouts or more, one row per layout: its newest release, the first of equal ones."""
    jobs: dict[tuple[str, ...], dict[tuple[str, ...], TrainingRow]] = {}
    for row in rows:
        layouts = jobs.setdefault((row.source, *map(row.text, JOB_COLUMNS)), {})
        layout = tuple(map(row.text, LAYOUT_COLUMNS))
        held = layouts.get(layout)
        if held is None or release_number(row.release) > release_number(held.release):
            layouts[layout] = row
    return [tuple(layouts.values()) for layouts in jobs.values() if len(layouts) > 1]


def measured_job(rows: Sequence[TrainingRow], predicted_s: Mapping[str, float]) -> MeasuredJob:
    """The job of rows that `rows_by_job` put together, with predicted seconds by row_id."""
    first = rows[0]
    precision = first.text("precision") or "precision not said"
    name = (
        f"{first.text('model')}, {first.text('gpus')}x{first.text('gpu')}, "
        f"{first.text('global_batch_seqs')} x {first.text('seq')} tokens, {precision}"
    )
    layouts = tuple(
        MeasuredLayout(
            row.row_id, row.measured_s, predicted_s.get(row.row_id), _num_replicas(row), row.is_core
        )
        for row in rows
    )
    differs = tuple(column for column in LAYOUT_COLUMNS if len({row.text(column) for row in rows}) > 1)
    return MeasuredJob(first.source, name, layouts, differs)


def _num_replicas(row: TrainingRow) -> int:
    """gpus / (tp x pp x cp): the column dp is not always that."""
    shared = math.prod(max(1, row.count(name, 1)) for name in ("tp", "pp", "cp"))
    return row.count("gpus") // shared


def left_out_seconds(
    rows: Iterable[TrainingRow], fitted: Sequence[TrainingRow], progress: Progress | None = None
) -> dict[str, float]:
    """row_id -> predicted seconds of every row that can be planned, its whole source left out of the fit.

    Args:
        fitted: rows that constants are fitted on, those of other sources each time.

    Raises:
        SpecError: fewer than two other sources are left to fit on.
    """
    steps, _ = measured_steps(list(rows))
    folds = folds_of(measured_steps(fitted)[0], progress)
    found: dict[str, float] = {}
    for source in sorted({step.row.source for step in steps}):
        fit = folds.fit((source,))
        own = [step for step in steps if step.row.source == source]
        found |= {
            step.row.row_id: predict(step.job.plan, step.job.cluster, fit=fit).step.value for step in own
        }
    return found


def measured_jobs(
    rows: Sequence[TrainingRow], fitted: Sequence[TrainingRow], progress: Progress | None = None
) -> list[MeasuredJob]:
    """All jobs of the rows, predicted by constants of `fitted` without the job's source. Raises as `left_out_seconds`."""
    groups = rows_by_job(rows)
    seconds = left_out_seconds((row for group in groups for row in group), fitted, progress)
    return [measured_job(group, seconds) for group in groups]


@dataclass(frozen=True)
class MemoryCheck:
    """A row that was measured to run, held against the planner's memory rule.

    Attributes:
        job: the row, its plan and its cluster.
        rejection: why the planner would exclude it; None where it would not.
        is_told: the row says what is recomputed; else `job_of` tried one after the other, and the last one may not fit.
        fits_recomputed: of an excluded row: the same plan fits when all is recomputed.
    """

    job: TrainingJob
    rejection: Rejection | None
    is_told: bool
    fits_recomputed: bool = False


def memory_checks(rows: Iterable[TrainingRow]) -> tuple[list[MemoryCheck], dict[str, str]]:
    """Every row that can be planned, by the rule of `planner.search`; of the others (row_id) the reason."""
    checks, skipped = [], {}
    for row in rows:
        try:
            job = job_of(row)
        except MeshwrightError as error:
            skipped[row.row_id] = str(error)
            continue
        rejected = _rejection(job, job.plan)
        recomputed = rejected is not None and _rejection(job, job.plan.changed(recompute="full")) is None
        checks.append(MemoryCheck(job, rejected, _is_told(row), recomputed))
    return checks, skipped


def _rejection(job: TrainingJob, plan: Plan) -> Rejection | None:
    """The planner's very rule: tensors and context of the fullest device against what the device has."""
    memory = estimate_memory(plan, job.cluster, catalog.find_schedule(plan.schedule))
    return estimated_rejection(plan, memory, job.cluster.memory_bytes)


def _is_told(row: TrainingRow) -> bool:
    return words.recompute_of(row) is not None and " or " not in row.text("recompute")
