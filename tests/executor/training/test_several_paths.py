"""Microbatches that take different ways through the same stages, executed: copies of a stage train as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.covering import always
from tests.training_case import ADAMW, TIED, Case, largest_difference, program_of, reference, training_of

from meshwright.executor import run_training
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.lowering.sharding.gradient_norm import ClipGradients, PostValidate
from meshwright.schedules import Schedule, registered
from meshwright.specs.cluster.machine import HOSTS

ITERATIONS = 2
TOLERANCE = 1e-10  # DESIGN, tolerances: float64
ADAMW_TOLERANCE = 1e-8
CLIPPING = 0.1  # every gradient of these cases is longer


def executed(program: Program, case: Case, pool: Pool, **fields: object) -> JobResult:
    """Proven on both hosts, then run."""
    for host in HOSTS:
        verify(program, host)
    return run_training(program, training_of(case, **fields), ITERATIONS, pool=pool, dtype="float64")


def check(result: JobResult, case: Case, tolerance: float = TOLERANCE) -> None:
    """Loss, norm, gradients and parameters are those of one process."""
    expected = reference(case.model, case.optimizer, case.global_batch, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=tolerance)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=tolerance)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < tolerance
    assert largest_difference(result.parameters, expected.parameters) < tolerance


@pytest.mark.parametrize(
    "case",
    [
        Case("dualpipe", 2, 4, model=TIED),
        Case("dualpipe", 4, 8, "recompute", model=TIED),
        Case("dualpipe", 2, 3, model=TIED, num_replicas=2),
        Case("dualpipe", 2, 4, samples=(3, 1, 2, 2)),
        Case("dualpipe", 4, 3, samples=(1, 2, 4)),
        Case("dualpipe", 2, 1),
    ],
    ids=str,
)
def test_ties_replicas_and_uneven_microbatches(case: Case, gloo_pool: Pool) -> None:
    check(executed(program_of(case), case, gloo_pool), case)


def test_whole_backwards_both_ways(gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of a user's with one B a visit, split by the pass or not."""

    def both_ways(num_devices: int, num_microbatches: int) -> list[list[str]]:
        ways = [(0, range(0, num_microbatches, 2)), (1, range(1, num_microbatches, 2))]
        return [
            [
                f"{abs(way * (num_devices - 1) - d)}{name}{m}"
                for name in "FB"
                for way, own in ways
                for m in own
            ]
            for d in range(num_devices)
        ]

    made = Schedule("both_ways", both_ways, num_copies=2)
    monkeypatch.setattr("tests.training_case.registered", lambda: {**registered(), "both_ways": made})
    for variant in ("plain", "split recompute"):
        case = Case("both_ways", 2, 4, variant, model=TIED)
        check(executed(program_of(case), case, gloo_pool), case)


@pytest.mark.parametrize("p", always([2, 4], {1}))
def test_draws_do_not_know_the_path(p: int, gloo_pool: Pool) -> None:
    alone, ours = Case("1f1b", 1, 8), Case("dualpipe", p, 8, "recompute")
    expected, result = (executed(program_of(case), case, gloo_pool, dropout=0.3) for case in (alone, ours))
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    for one, other in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(one, other) < TOLERANCE


@pytest.mark.parametrize(
    "case",
    always([Case("dualpipe", 2, 4, model=TIED, num_replicas=2), Case("dualpipe", 4, 8, model=TIED)], {0}),
    ids=str,
)
def test_a_norm_counts_every_copy_once(case: Case, gloo_pool: Pool) -> None:
    """Clipped, and stepped before the norm is known and taken back: both are the clipped step of one process."""
    case = replace(case, optimizer=replace(ADAMW, clip_norm=CLIPPING))
    clipped = ClipGradients()(program_of(case))
    ordinary = executed(clipped, case, gloo_pool)
    check(ordinary, case, ADAMW_TOLERANCE)
    validated = executed(PostValidate()(clipped), case, gloo_pool)
    assert all(it.num_undone > 0 for it in validated.iterations)
    for name, value in ordinary.parameters.items():
        assert torch.equal(value, validated.parameters[name])
