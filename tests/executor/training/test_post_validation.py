"""Clipping by the norm of all ranks, and steps taken before it is known, on gloo in float64: equal to one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.covering import covered
from tests.training_case import ADAMW, SGD, TIED, Case, largest_difference, program_of, reference, training_of

from meshwright.executor import run_training
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.lowering.sharding.gradient_norm import ClipGradients, PostValidate
from meshwright.specs.cluster.machine import HOSTS

ITERATIONS = 4
TOLERANCE, ADAMW_TOLERANCE = 1e-10, 1e-8  # DESIGN, tolerances: float64
CLIPPING = 0.5  # norms of the small model are 0.6 to 1.1


def programs(case: Case) -> tuple[Program, Program]:
    """The clipped step, and the one that does not wait."""
    clipped = ClipGradients()(program_of(case))
    return clipped, PostValidate()(clipped)


def executed(program: Program, case: Case, pool: Pool) -> JobResult:
    for host in HOSTS:
        verify(program, host)
    return run_training(program, training_of(case), ITERATIONS, pool=pool, dtype="float64")


OPTIMIZERS = {"sgd": SGD, "adamw": ADAMW, "momentum": replace(SGD, name="sgd(momentum=0.9)")}
LAYOUTS = [
    Case("1f1b", 2, 4),
    Case("1f1b", 2, 2, model=TIED, num_replicas=2),
    Case("zb_h1", 4, 6, model=TIED),
    Case("interleaved_1f1b", 2, 4, model=TIED),
    Case("1f1b", 1, 4, num_replicas=2),
]
STEPS = [
    (replace(case, optimizer=optimizer), name) for name, optimizer in OPTIMIZERS.items() for case in LAYOUTS
]


def choices_of(case: Case, optimizer: str) -> dict[str, object]:
    """What is chosen for a step."""
    return {
        "optimizer": optimizer, "schedule": case.schedule, "devices": case.num_devices,
        "tied": case.model is TIED, "replicas": case.num_replicas,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "optimizer"), covered(STEPS, [choices_of(*each) for each in STEPS], 1), ids=str
)
def test_it_is_the_clipped_step_of_one_process(gloo_pool: Pool, case: Case, optimizer: str) -> None:
    """Tied tables and replicas count once in the norm; what was stepped early and undone leaves no trace."""
    case = replace(case, optimizer=replace(case.optimizer, clip_norm=CLIPPING))
    ordinary, validated = (executed(program, case, gloo_pool) for program in programs(case))
    assert all(it.gradient_norm > CLIPPING for it in ordinary.iterations), "every step is clipped"
    assert all(it.num_undone > 0 for it in validated.iterations)
    assert not any(it.num_undone for it in ordinary.iterations)
    if "momentum" not in case.optimizer.name:
        expected = reference(case.model, case.optimizer, case.global_batch, ITERATIONS)
        tolerance = ADAMW_TOLERANCE if optimizer == "adamw" else TOLERANCE
        assert [it.gradient_norm for it in ordinary.iterations] == pytest.approx(
            expected.norms, rel=tolerance
        )
        assert ordinary.losses == pytest.approx(expected.losses, rel=tolerance)
        assert largest_difference(ordinary.parameters, expected.parameters) < tolerance
    check_same(ordinary, validated)


def check_same(one: JobResult, other: JobResult) -> None:
    """To the last bit."""
    assert one.losses == other.losses
    for name, value in one.parameters.items():
        assert torch.equal(value, other.parameters[name])


def test_steps_that_nothing_forbids_stay(gloo_pool: Pool) -> None:
    """Some steps are clipped and some are not: only the former are undone."""
    case = Case("1f1b", 2, 4, optimizer=replace(ADAMW, clip_norm=None))
    norms = reference(case.model, case.optimizer, case.global_batch, ITERATIONS).norms
    limit = sorted(norms)[1] * 1.001
    case = replace(case, optimizer=replace(ADAMW, clip_norm=limit))
    ordinary, validated = (executed(program, case, gloo_pool) for program in programs(case))
    undone = [it.num_undone > 0 for it in validated.iterations]
    assert undone == [it.gradient_norm > limit for it in ordinary.iterations]
    assert True in undone and False in undone
    check_same(ordinary, validated)


def test_an_overflow_takes_no_step(gloo_pool: Pool) -> None:
    """The first step throws the parameters far out; from then on gradients are no numbers, and nothing moves."""
    case = Case("1f1b", 2, 4, optimizer=replace(SGD, learning_rate=1e160, clip_norm=CLIPPING))
    ordinary, validated = (executed(program, case, gloo_pool) for program in programs(case))
    assert not torch.isfinite(torch.tensor(validated.iterations[-1].gradient_norm))
    assert all(torch.isfinite(value).all() for value in validated.parameters.values())
    assert validated.iterations[-1].num_undone == 2
    for name, value in ordinary.parameters.items():
        assert torch.equal(value, validated.parameters[name])
