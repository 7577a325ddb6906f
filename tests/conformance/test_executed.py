"""Every schedule, plain, recomputed and split, executed on gloo in float64, gives what one process gives; and its trace
obeys the start rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.executor import run_training
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.timing.dependency_table import RING
from meshwright.ir.trace import Trace
from meshwright.schedules import registered
from tests.covering import covered
from tests.training_case import ADAMW, Case, cases, largest_difference, program_of, reference, training_of

ITERATIONS = 2
TOLERANCE = 1e-10  # DESIGN, tolerances: float64
ADAMW_TOLERANCE = 1e-8
SIZES = ((2, 4), (4, 8))
CASES = cases(sorted(registered()), SIZES)


def tried(chosen: list[Case]) -> list[object]:
    """The cases as parameters; always tried: every schedule in every variant and at every size."""
    choices = [
        {"schedule": case.schedule, "variant": case.variant, "size": case.num_devices} for case in chosen
    ]
    return covered(chosen, choices)


def executed(case: Case, pool: Pool) -> JobResult:
    """The case on the pool."""
    program = program_of(case)
    verify(program)
    return run_training(program, training_of(case), ITERATIONS, pool=pool, dtype="float64")


@pytest.mark.parametrize(
    "case",
    tried(CASES),
    ids=lambda c: f"{c.schedule}-{c.variant}-p{c.num_devices}m{c.num_microbatches}",
)
def test_one_process_finds_the_same(case: Case, gloo_pool: Pool) -> None:
    check_equals_one_process(case, gloo_pool)


@pytest.mark.parametrize(
    "case",
    [  # one variant shows the optimizer of a schedule
        pytest.param(replace(c, optimizer=ADAMW), marks=() if c.variant == "plain" else pytest.mark.slow)
        for c in CASES
        if c.num_devices == 2
    ],
    ids=str,
)
def test_parameters_after_adamw(case: Case, gloo_pool: Pool) -> None:
    result = executed(case, gloo_pool)
    expected = reference(case.model, case.optimizer, case.global_batch, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=ADAMW_TOLERANCE)
    assert largest_difference(result.parameters, expected.parameters) < ADAMW_TOLERANCE


@pytest.mark.parametrize(
    "case",
    [
        Case("1f1b", 1, 4, num_replicas=2),
        Case("1f1b", 2, 4, num_replicas=2),
        Case("zb_h1", 2, 4, num_replicas=2),
        Case("zbv", 2, 4, num_replicas=2),
        Case("v_half", 2, 4, "recompute", num_replicas=2),
        Case("interleaved_1f1b", 2, 4, "split recompute", num_replicas=2),
    ],
    ids=str,
)
def test_data_parallel(case: Case, gloo_pool: Pool) -> None:
    check_equals_one_process(case, gloo_pool)


def check_equals_one_process(case: Case, gloo_pool: Pool) -> None:
    """Loss, norm, every gradient and the parameters of one process; and a trace in the order of the law."""
    result = executed(case, gloo_pool)
    expected = reference(case.model, case.optimizer, case.global_batch, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE
    assert result.trace is not None
    check_trace(result.trace)


def check_trace(trace: Trace) -> None:
    """Every row has a start and an end, streams keep their order, and no read starts before its writer ended."""
    program = trace.program
    assert trace.num_iterations == ITERATIONS and trace.engine == "executed"
    assert (trace.posted_s >= 0).all() and (trace.end_s > 0).all()
    assert (trace.start_s >= trace.posted_s).all() and (trace.end_s >= trace.start_s).all()
    lanes = program.list_of_row * len(program.tables.streams) + program.columns.stream
    for lane in np.unique(lanes):
        rows = np.flatnonzero(lanes == lane)
        ends, posted = trace.end_s[:, rows].reshape(-1), trace.posted_s[:, rows].reshape(-1)
        assert (posted[1:] >= ends[:-1]).all(), f"stream {lane} does not keep its order"
    deps = dependencies(program)
    reader = np.repeat(np.arange(program.num_rows), np.diff(deps.ptr))
    for t in range(trace.num_iterations):
        past = t - deps.lag.astype(int)
        chosen = (past >= 0) & (deps.version != RING)
        ended = trace.end_s[past[chosen], deps.row[chosen]]
        assert (trace.start_s[t][reader[chosen]] >= ended).all(), "a read starts before its writer has ended"
