"""Calibration: what a whole pass takes beyond its operators, fitted on the passes of real stages in a profile.

    seconds = factor * (sum of operators) + overhead_s * (number of operators)

Cold caches and new memory scale with the work, autograd and the interpreter with the number of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.specs.cluster.profile import PassSample, Profile
from meshwright.specs.error import SpecError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator
from meshwright.specs.plan.optimizer import AdamW
from meshwright.stage.operator.layer import MicrobatchShape, step_operators
from meshwright.stage.operator.stage import PASSES, stage_operators
from meshwright.stage.saved.saved import num_stage_parameters

OperatorSeconds = Callable[[Operator], float]
# With fewer stages than this the overhead cannot be told from the factor: only the factor is fitted.
LEAST_STAGES = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """The correction of one pass; `spread` is the largest relative error it leaves on the stages it was fitted to."""

    factor: float = 1.0
    overhead_s: float = 0.0
    spread: float = 0.0

    def seconds(self, operators_s: float, num_operators: int) -> float:
        """Seconds of a pass from the sum of its operators and their number."""
        return self.factor * operators_s + self.overhead_s * num_operators


def calibrate(profile: Profile, seconds: OperatorSeconds) -> dict[str, Calibration]:
    """A correction for every pass of which the profile has samples, given the seconds of one operator."""
    found: dict[str, list[tuple[float, int, float]]] = {}
    for sample in profile.passes:
        operators = pass_operators(sample, profile.dtype)
        total = sum(seconds(operator) * operator.count for operator in operators)
        found.setdefault(sample.name, []).append((total, _count(operators), sample.seconds))
    return {name: fit(rows) for name, rows in found.items()}


def fit(rows: Sequence[tuple[float, int, float]]) -> Calibration:
    """Least squares of the relative error over (sum of operators, their number, measured seconds)."""
    total, number, measured = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    columns = np.stack([total / measured, number / measured], axis=1)
    overhead = 0.0
    factor = float(columns[:, 0].sum() / np.square(columns[:, 0]).sum())
    if len(rows) >= LEAST_STAGES:
        solution, _, rank, _ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
        # A negative overhead or factor is noise; then the one-parameter fit stands.
        if rank == 2 and min(solution) >= 0:
            factor, overhead = float(solution[0]), float(solution[1])
    left = np.abs(columns @ np.array([factor, overhead]) - 1.0)
    return Calibration(factor, overhead, float(left.max()))


def pass_operators(sample: PassSample, dtype: str) -> tuple[Operator, ...]:
    """The operators that a sampled pass runs. Raises SpecError on a pass that is none."""
    model = ModelSpec.from_dict(sample.model)
    layers = StageLayers(0, sample.num_blocks, sample.has_embedding, sample.has_head)
    if sample.name == "STEP":
        return step_operators(num_stage_parameters(model, layers), dtype, AdamW())
    if sample.name not in PASSES:
        raise SpecError(f"profile has a pass {sample.name!r}", allowed=", ".join((*PASSES, "STEP")))
    shape = MicrobatchShape(sample.num_sequences, sample.sequence_length, dtype)
    return stage_operators(model, layers, sample.name, shape)


def _count(operators: Sequence[Operator]) -> int:
    """How many operators run, repetitions counted."""
    return sum(operator.count for operator in operators)
