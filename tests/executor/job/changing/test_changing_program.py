"""Programs that change by step: made ahead of the ranks, run as one process would, and what goes wrong is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.covering import always
from tests.grouped_case import CASES, batch_by_batch, grouped_job, grouped_plan
from tests.planned_case import AFTER_ADAMW, GRADIENTS
from tests.training_case import largest_difference

from meshwright.executor.job.changing.controller import ControlledStep, StepSeconds
from meshwright.executor.job.pool import Pool
from meshwright.lowering.grouped_program import grouped_program
from meshwright.specs.error import ExecutionError, PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.sequence_group import GroupedBatch


@dataclass
class Scripted:
    """Gives groups that were written down; keeps what it was asked."""

    plan: Plan
    batches: Sequence[GroupedBatch]
    asked: list[tuple[int, int]] = field(default_factory=list)
    first_step: int = 0

    def next(self, step: int, observations: Sequence[StepSeconds]) -> ControlledStep:
        self.asked.append((step, len(observations)))
        groups = self.batches[step - self.first_step]
        return ControlledStep(grouped_program(self.plan, groups), groups, 0.5 + step)


@pytest.mark.parametrize(
    ("names", "choices"),
    always(
        [
            (["2, 1, 1", "4", "idle", "uneven", "3, 1"], {}),
            (["4", "2, 1, 1", "4"], {"recompute": "full", "passes": "clip_gradients(max_norm=0.1)"}),
        ],
        {0, 1},
    ),
)
def test_steps_of_other_groups_train_as_one_process(
    names: list[str], choices: dict[str, str], gloo_pool: Pool
) -> None:
    plan, batches = grouped_plan(**choices), [CASES[name] for name in names]
    controller = Scripted(plan, batches)
    result = gloo_pool.run(grouped_job(plan, batches[0], len(batches)), controller=controller)
    expected = batch_by_batch(plan, batches)
    assert result.losses == pytest.approx(expected.losses, rel=AFTER_ADAMW)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=AFTER_ADAMW)
    assert largest_difference(result.gradients[0], expected.gradients[0]) < GRADIENTS
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < AFTER_ADAMW
    assert largest_difference(result.parameters, expected.parameters) < AFTER_ADAMW
    assert [it.tokens for it in result.iterations] == [batch.num_tokens for batch in batches]
    assert [it.groups for it in result.iterations] == batches
    assert [it.predicted_s for it in result.iterations] == [0.5 + step for step in range(len(batches))]
    # one after the other, each while the one before runs at the earliest
    assert [step for step, _ in controller.asked] == list(range(len(batches)))
    assert all(step - 1 <= ended <= step for step, ended in controller.asked)
    assert result.trace is not None
    assert len(result.trace.program.tables.microbatches) == len(batches[-1].microbatches)


@pytest.mark.slow  # four processes that end with it
def test_a_controller_that_fails_ends_the_training() -> None:
    class Failing(Scripted):
        def next(self, step: int, observations: Sequence[StepSeconds]) -> ControlledStep:
            if step == 2:
                raise PlanError("no groups", allowed="some", next="cut sequences shorter")
            return super().next(step, observations)

    plan, batches = grouped_plan(), [CASES["4"]] * 3
    with Pool(4) as pool, pytest.raises(PlanError, match="no groups"):
        pool.run(grouped_job(plan, batches[0], 3), controller=Failing(plan, batches))


@pytest.mark.slow  # four processes that end with it
def test_a_program_that_needs_other_process_groups_is_refused() -> None:
    class Others(Scripted):
        def next(self, step: int, observations: Sequence[StepSeconds]) -> ControlledStep:
            made = super().next(step, observations)
            if step == 0:
                return made
            streams = tuple(f"{name}s" if name == "reduce" else name for name in made.program.tables.streams)
            return replace_program(made, streams)

    def replace_program(made: ControlledStep, streams: tuple[str, ...]) -> ControlledStep:
        return made._replace(program=made.program.with_tables(streams=streams))

    plan, batches = grouped_plan(), [CASES["4"]] * 2
    with Pool(4) as pool, pytest.raises(ExecutionError, match="same process groups"):
        pool.run(grouped_job(plan, batches[0], 2), controller=Others(plan, batches))


def test_a_job_of_one_program_is_as_before(gloo_pool: Pool) -> None:
    plan, groups = grouped_plan(), CASES["uneven"]
    result = gloo_pool.run(grouped_job(plan, groups, 2))
    assert all(it.groups is None and it.predicted_s is None for it in result.iterations)
    assert replace(result.iterations[0], seconds=0.0).tokens == groups.num_tokens
