"""Cross-validation of predicted steps: every source, or model, predicted by constants that were fitted on the others.

The half width of an interval is fitted as the constants are: on errors of rows that were left out in turn among those
that are fitted, so a left-out source says nothing about its own interval either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import linprog

from meshwright.costs.step.profile import MANY_DEVICES, MOST_FITTED_DEVICES, StepFit, Width
from meshwright.evidence.tables.table import TrainingRow
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_trait import TRAITS, step_traits
from meshwright.specs.error import SpecError
from meshwright.specs.plan.software import CLASSES

from .fit_steps import (
    Linearised,
    fitted,
    linearised,
    logarithms,
    source_weights,
    start,
)
from .step_data import MeasuredStep, Progress, measured_steps

By = Literal["source", "model", "size"]
SHARE = 0.80  # of the errors of sources left out in turn among those that are fitted, what a width contains
NOT_SPELT = re.compile(r"[^a-z0-9]")
NUM_CHOOSING = 3  # rows of a left-out source that may choose its software class
ROUNDS = 2  # linearised at what is expected, then at what was fitted


@dataclass(frozen=True, eq=False)
class Folds:
    """Rows that were fitted together: their linearised steps, weights, groups and traits."""

    steps: tuple[MeasuredStep, ...]
    data: Linearised
    traits: tuple[Mapping[str, float], ...]

    def fit(self, without: Sequence[str] = (), by: By = "source") -> StepFit:
        """Constants and widths from the rows of all groups but these. Raises SpecError where too few are left."""
        rows = [
            i for i, step in enumerate(self.steps) if group_of(step.row, by) not in without and step.is_fitted
        ]
        sources = {self.steps[i].row.source for i in rows}
        if len(sources) < 2:
            raise SpecError(
                f"measured steps of {len(sources)} source(s) are left to fit on",
                allowed="steps of two sources or more: intervals are of sources that are left out in turn",
                next="add a table of another source",
            )
        constants = fitted(self.data.take(rows), self._weights(rows))
        return StepFit(constants, self._width(rows, without, by))

    def _weights(self, rows: Sequence[int]) -> np.ndarray:
        return source_weights([self.steps[i].row.source for i in rows])

    def _width(self, rows: Sequence[int], without: Sequence[str], by: By) -> Width:
        """The width that contains SHARE of the errors of sources left out in turn among `rows`."""
        errors, traits = [], []
        sources = sorted({self.steps[i].row.source for i in rows})
        for source in sources:
            inside = [i for i in rows if self.steps[i].row.source != source]
            constants = fitted(self.data.take(inside), self._weights(inside))
            tested = [
                i
                for i, step in enumerate(self.steps)
                if step.row.source == source and group_of(step.row, by) not in without
            ]
            own = self.data.take(tested)
            predicted = own.predicted(logarithms(constants))
            errors += list(own.measured_s / predicted - 1.0)
            traits += [self.traits[i] for i in tested]
        return width_of(errors, traits, TRAITS, SHARE)


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
    fit = StepFit(constants, Width(0.0))
    traits = [step_traits(s.job.plan, predict(s.job.plan, s.job.cluster, fit=fit).parts) for s in steps]
    return Folds(tuple(steps), data, tuple(traits))


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


def width_of(
    errors: Sequence[float], traits: Sequence[Mapping[str, float]], names: Sequence[str], share: float
) -> Width:
    """The linear half width that contains `share` of the absolute errors and is narrow elsewhere: quantile regression,
    as a linear program over base and slopes, which are not negative."""
    size = len(errors)
    columns = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each in traits])
    above, below = np.full(size, share / size), np.full(size, (1.0 - share) / size)
    cost = np.concatenate([np.full(columns.shape[1], 1e-6), above, below])
    equal = np.hstack([columns, np.eye(size), -np.eye(size)])
    found = linprog(cost, A_eq=equal, b_eq=np.abs(errors), bounds=(0, None), method="highs")
    base, *slopes = map(float, found.x[: columns.shape[1]])
    return Width(base, dict(zip(names, slopes, strict=True)))
