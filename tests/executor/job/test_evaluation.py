"""The held-out loss of every layout is that of one process on the same windows and the same parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from tests.covering import always
from tests.training_case import SEQUENCE, TIED, Case, program_of, training_of

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT
from meshwright.executor.training.training_job import RANDOM, RandomTokens

BATCHES, ITERATIONS = 2, 4
CASES = [
    Case("1f1b", 2, 4),
    Case("gpipe", 2, 4, "recompute", num_replicas=2, model=TIED),
    Case("interleaved_1f1b", 2, 4, "split"),
    Case("gpipe", 1, 2, num_replicas=2),
]


def expected_loss(case: Case, parameters: dict[str, torch.Tensor]) -> float:
    """Of plain torch on the whole model: the mean over the held-out windows of the whole batch."""
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(case.model)
    finally:
        torch.set_default_dtype(torch.float32)
    plain.load_state_dict({"head.weight": parameters[EMBEDDING_WEIGHT], **parameters})
    num = BATCHES * case.global_batch
    windows = RandomTokens(case.model.vocabulary_size).held_out_windows(range(num), num, SEQUENCE)
    with torch.no_grad():
        return float(F.cross_entropy(plain(windows[0]).flatten(0, 1), windows[1].flatten()))


@pytest.mark.parametrize(
    "case",
    always(CASES, {2, 3}),
    ids=lambda case: f"{case.schedule} {case.num_devices}x{case.num_replicas} {case.variant}",
)
def test_the_ranks_find_the_loss_of_one_process(case: Case, gloo_pool: Pool) -> None:
    training = training_of(case, source=replace(RANDOM, evaluate_every=2, num_evaluated=BATCHES))
    result = run_training(program_of(case), training, ITERATIONS, pool=gloo_pool, dtype="float64")
    found = [iteration.held_out_loss for iteration in result.iterations]
    assert [value is not None for value in found] == [False, True, False, True]
    assert found[-1] == pytest.approx(expected_loss(case, result.parameters), rel=1e-10)
    without = run_training(program_of(case), training_of(case), ITERATIONS, pool=gloo_pool, dtype="float64")
    assert result.losses == without.losses  # to look changes nothing


def test_the_seconds_of_evaluations_are_no_part_of_iterations_or_trace(gloo_pool: Pool) -> None:
    case = Case("1f1b", 2, 4)
    training = training_of(case, source=replace(RANDOM, evaluate_every=1, num_evaluated=20))
    result = run_training(program_of(case), training, 2, pool=gloo_pool)
    trace, iterations = result.trace, result.iterations
    assert trace is not None and trace.num_iterations == 2
    assert all(one.paused_s > 0 for one in iterations)
    elapsed = iterations[-1].end_s + iterations[-1].paused_s - iterations[0].end_s
    trained = sum(one.seconds for one in iterations[1:])
    paused = sum(one.paused_s for one in iterations)
    assert trained + paused == pytest.approx(elapsed, abs=1e-6)
    # 20 batches of forwards take longer than one of forwards and backwards: they are not in the trace
    assert float(trace.end_s.max() - trace.posted_s.min()) < elapsed
    assert (trace.end_s >= trace.start_s).all() and (trace.start_s >= trace.posted_s - 1e-9).all()


def test_the_last_iteration_is_evaluated_and_none_where_nobody_asks() -> None:
    training = training_of(Case("gpipe", 1, 1), source=replace(RANDOM, evaluate_every=100))
    assert training.is_evaluated(6, 7) and not training.is_evaluated(5, 7)
    assert not replace(training, source=RANDOM).is_evaluated(6, 7)
