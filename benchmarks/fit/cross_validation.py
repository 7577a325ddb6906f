"""Cross-validation of predicted steps: every source, or model, predicted by constants that were fitted on the others.

Intervals are not fitted here (see `fit_widths`): a fit has the expected ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.costs.step.profile import MANY_DEVICES, MOST_FITTED_DEVICES, StepFit
from meshwright.evidence.tables.table import TrainingRow
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.error import SpecError
from meshwright.specs.plan.software import CLASSES

from .fit_steps import Linearised, fitted, linearised, source_weights, start
from .fit_widths import EXPECTED
from .step_data import MeasuredStep, Progress, measured_steps

By = Literal["source", "model", "size"]
NOT_SPELT = re.compile(r"[^a-z0-9]")
NUM_CHOOSING = 3  # rows of a left-out source that may choose its software class
ROUNDS = 2  # linearised at what is expected, then at what was fitted


@dataclass(frozen=True, eq=False)
class Folds:
    """Rows that were fitted together, and their linearised steps."""

    steps: tuple[MeasuredStep, ...]
    data: Linearised

    def fit(self, without: Sequence[str] = (), by: By = "source") -> StepFit:
        """Constants from the rows of all groups but these. Raises SpecError where too few are left."""
        rows = [
            i for i, step in enumerate(self.steps) if group_of(step.row, by) not in without and step.is_fitted
        ]
        sources = {self.steps[i].row.source for i in rows}
        if len(sources) < 2:
            raise SpecError(
                f"measured steps of {len(sources)} source(s) are left to fit on",
                allowed="steps of two sources or more, of which each can be left out",
                next="add a table of another source",
            )
        weights = source_weights([self.steps[i].row.source for i in rows])
        return StepFit(fitted(self.data.take(rows), weights), EXPECTED)


def group_of(row: TrainingRow, by: By) -> str:
    """What is left out together with a row; sources spell one model differently (gpt3-175B, gpt3_175b).
    By size: MANY_DEVICES, or nothing."""
    if by == "size":
        return MANY_DEVICES if row.count("gpus") > MOST_FITTED_DEVICES else ""
    return row.source if by == "source" else NOT_SPELT.sub("", row.text("model").lower())


def folds_of(steps: Sequence[MeasuredStep], progress: Progress | None = None) -> Folds:
    """Simulate every row at the start and at what is fitted there, with each constant a little larger."""
    constants = start()
    for number in range(ROUNDS):
        if progress is not None:
            progress(f"simulating {len(steps)} steps, round {number + 1} of {ROUNDS}", number / ROUNDS)
        data = linearised(
            [step.predict for step in steps], [step.row.measured_s for step in steps],
            [step.family for step in steps], constants,
        )  # fmt: skip
        constants = fitted(data, source_weights([step.row.source for step in steps]))
    return Folds(tuple(steps), data)


def left_out_predictions(folds: Folds, by: By) -> dict[str, Predicted]:
    """row_id -> the step of every row, simulated at constants that were fitted without its group."""
    found = {}
    for group in sorted({group_of(step.row, by) for step in folds.steps}):
        fit = folds.fit((group,), by)
        for step in folds.steps:
            if group_of(step.row, by) == group:
                found[step.row.row_id] = predict(step.job.plan, step.job.cluster, fit=fit)
    return found


def cross_validate(rows: Sequence[TrainingRow], by: By) -> dict[str, float]:
    """row_id -> predicted seconds of every row that can be planned, its source or model left out of the fit."""
    steps, _ = measured_steps(rows)
    folds = folds_of(steps)
    return {row_id: estimate.step.value for row_id, estimate in left_out_predictions(folds, by).items()}


def chosen_class_predictions(rows: Sequence[TrainingRow]) -> dict[str, float]:
    """row_id -> predicted seconds where a left-out source may say something of itself: its first NUM_CHOOSING rows choose
    its software class, the one with the least error in the median; the others are predicted with it. Sources with no more
    rows than that are not in the result."""
    steps, _ = measured_steps(rows)
    folds = folds_of(steps)
    found: dict[str, float] = {}
    for source in sorted({step.row.source for step in steps}):
        own = [step for step in steps if step.row.source == source]
        choosing, rest = own[:NUM_CHOOSING], own[NUM_CHOOSING:]
        if rest:
            fit = folds.fit((source,))
            chosen = min(CLASSES, key=lambda name: _median_error(choosing, name, fit))
            found |= {step.row.row_id: _with_class(step, chosen, fit) for step in rest}
    return found


def _median_error(steps: Sequence[MeasuredStep], name: str, fit: StepFit) -> float:
    return float(np.median([abs(np.log(_with_class(s, name, fit) / s.row.measured_s)) for s in steps]))


def _with_class(step: MeasuredStep, name: str, fit: StepFit) -> float:
    return predict(step.job.plan.changed(software=name), step.job.cluster, fit=fit).step.value
