"""A training before its first step: where it runs and goes on, what is expected of it, and who is told."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.subjects.diagnosing import require_torch
from meshwright.api.subjects.simulating import simulate
from meshwright.api.subjects.subject import Subject
from meshwright.api.trainings.drift import DriftWatch
from meshwright.api.trainings.grouped_steps import GroupedSteps, whole_source
from meshwright.api.trainings.job import Resumed, job_of, resumed_from
from meshwright.api.trainings.metrics import Meter, StepMetrics
from meshwright.api.trainings.place import TrainingPlace
from meshwright.api.trainings.sink import told
from meshwright.executor.capability import check_plan
from meshwright.ir.trace import Trace
from meshwright.prediction.description import describe
from meshwright.specs.error import SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.utilisation import StepFlops
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.learning_rate import LearningRate
from meshwright.specs.training.recipe import Length, Recipe
from meshwright.specs.training.sinks import Sinks
from meshwright.specs.training.source import Source
from meshwright.stage.mesh import device_order

if TYPE_CHECKING:
    from meshwright.executor.job.launch import Launch

logger = logging.getLogger(__name__)
# a run by the clock gets this many times the predicted iterations, so that the clock ends it
SPARE_ITERATIONS = 4.0


@dataclass(frozen=True, eq=False)
class ReadyTraining:
    """A training before its first step, with what is expected of it.

    ``num_steps``: of the whole training; None where only the clock ends it. ``grouped``: who makes the program of every step,
    where sequences are in groups that change.
    """

    place: TrainingPlace
    length: Length
    recipe: Recipe
    source: Source
    checkpoints: Checkpoints | None
    resumed: Resumed
    predicted: Trace
    num_steps: int | None
    grouped: GroupedSteps | None = None

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return float(self.predicted.metadata["step"]["value"])

    @cached_property
    def rates(self) -> LearningRate:
        """Of every step since the very first."""
        lead = self.length.lead(self.place.plan, self.resumed.step, self.resumed.tokens)
        return self.recipe.rates(self.num_steps, lead)

    @cached_property
    def flops(self) -> StepFlops:
        """Of a step on a device."""
        made = self.place.subject
        plan = self.place.plan if self.grouped is None else self.grouped.plan
        return StepFlops.of(plan, made.cluster, getattr(made.computes, "profile", None))

    def job(self, measures_memory: bool, is_launched: bool) -> Any:
        """What the processes are given. Raises SpecError where the training has reached its end already."""
        return job_of(
            self.place.plan, self.place, _num_iterations(self.num_steps, self.length.seconds, self.step_s, self.resumed),
            self.recipe, self.rates, self.source, self.checkpoints, self.resumed, measures_memory, is_launched,
            None if self.grouped is None else self.grouped.next(self.resumed.step, ()),
        )  # fmt: skip

    def meter(self, job: Any) -> Meter:
        """What makes numbers for people of every iteration."""
        return Meter(
            self.rates, self.step_s, self.flops, self.resumed.step, self.num_steps, self.length.seconds,
            self.resumed.tokens,
            DriftWatch(self.predicted, self.step_s, job.program) if self.grouped is None else None,
            self.place.plan.workload.tokens_per_step,
        )  # fmt: skip

    @contextlib.contextmanager
    def told(
        self,
        sinks: Sinks,
        progress: Callable[[StepMetrics], None] | None,
        launch: Launch | None,
        seen: list[StepMetrics],
    ) -> Iterator[Callable[[StepMetrics], None]]:
        """A function that tells a step to all who want to know and keeps it in `seen`; of several hosts one process tells."""
        if launch is not None and launch.process != (device_order(self.place.plan) or (0,))[0]:
            sinks, progress = Sinks(), None
        facts = _facts(self.place.plan, self.recipe, self.source, self.resumed)
        folder = None if self.checkpoints is None else Path(self.checkpoints.folder)
        with told(sinks, facts, self.resumed.step, self.resumed.is_asked, progress, folder) as tell:

            def note(one: StepMetrics) -> None:
                seen.append(one)
                if one.drift is not None and progress is None:
                    logger.warning("%s", one.drift)
                tell(one)

            yield note


def ready_training(
    place: TrainingPlace, length: Length, recipe: Recipe, source: Source, checkpoints: Checkpoints | None,
    first_step: int, seed: int, launch: Launch | None, sequence_groups: str = "",
    said: Callable[[str], None] = lambda text: None,
) -> ReadyTraining:  # fmt: skip
    """Looks whether the plan can run at all, finds where it goes on, and predicts its step. ``sequence_groups``: which
    algorithm puts sequences into groups of ranks."""
    check_plan(place.plan)
    recipe.router.check(place.plan)
    recipe.capacity.check(place.plan)
    require_torch()
    _require_proof(place.subject)
    resumed = resumed_from(checkpoints, first_step, seed, launch is None or launch.process == 0)
    num_steps = length.num_steps(place.plan, resumed.step, resumed.tokens)
    if not sequence_groups:
        predicted = simulate(place.subject)
        return ReadyTraining(place, length, recipe, source, checkpoints, resumed, predicted, num_steps)
    source = whole_source(source, said)
    grouped = GroupedSteps.of(sequence_groups, place, source, resumed)
    predicted = grouped.trace(grouped.next(resumed.step, ()).groups)
    return ReadyTraining(place, length, recipe, source, checkpoints, resumed, predicted, num_steps, grouped)


def _facts(plan: Plan, recipe: Recipe, source: Source, resumed: Resumed) -> dict[str, Any]:
    """What tells a training from others, beside its curves."""
    return {
        "model": plan.model.name, "plan": describe(plan), "num_devices": plan.num_devices,
        "global_batch": plan.workload.global_batch, "sequence_length": plan.workload.sequence_length,
        "optimizer": plan.optimizer, "learning_rate": recipe.learning_rate, "data": source.name,
        "seed": resumed.seed, "first_step": resumed.step,
    }  # fmt: skip


def _num_iterations(num_steps: int | None, seconds: float | None, step_s: float, resumed: Resumed) -> int:
    """Iterations of this run. Raises SpecError where the training has reached its end already."""
    ends = []
    if num_steps is not None:
        ends.append(num_steps - resumed.step)
    if seconds is not None:
        ends.append(max(2, math.ceil(SPARE_ITERATIONS * seconds / step_s)))
    if min(ends) < 1:
        raise SpecError(
            f"{resumed.path or 'the training'} has done {resumed.step} steps, and {num_steps} are asked for",
            allowed=f"more than {resumed.step} steps in all (--iterations or --tokens count from the very first)",
        )
    return min(ends)


def _require_proof(made: Subject) -> None:
    """A program that is not legal, not whole, or does not fit is refused before any process starts."""
    from meshwright.api.plans.checking import check

    proof = check(made)
    if proof.error is not None:
        raise proof.error
