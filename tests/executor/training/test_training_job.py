"""Training on gloo: ties, uneven microbatches, keyed randomness, float32, the corpus, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.training_case import (
    ADAMW,
    MODEL,
    SEQUENCE,
    SGD,
    TIED,
    Case,
    largest_difference,
    program_of,
    reference,
    training_of,
)

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.source import Source

ITERATIONS = 3
TOLERANCE = 1e-10


@pytest.mark.parametrize(
    "case",
    [
        Case("1f1b", 2, 4, model=TIED),
        Case("1f1b", 1, 2, model=TIED),
        Case("zb_h1", 2, 4, model=TIED, num_replicas=2),
        Case("interleaved_1f1b", 1, 2, model=TIED),
        Case("1f1b", 2, 3, samples=(3, 1, 2)),
        Case("gpipe", 2, 3, "recompute", samples=(1, 4, 2), num_replicas=2),
    ],
    ids=str,
)
def test_ties_and_uneven_microbatches(case: Case, gloo_pool: Pool) -> None:
    result = run_training(program_of(case), training_of(case), ITERATIONS, pool=gloo_pool, dtype="float64")
    expected = reference(case.model, case.optimizer, case.global_batch, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE
    assert EMBEDDING_WEIGHT in result.parameters
    assert [it.tokens for it in result.iterations] == [case.global_batch * SEQUENCE] * ITERATIONS


def test_float32(gloo_pool: Pool) -> None:
    case = Case("1f1b", 2, 4)
    result = run_training(program_of(case), training_of(case), 1, pool=gloo_pool)
    expected = reference(MODEL, SGD, case.global_batch, 1, torch.float32)
    assert largest_difference(result.gradients[0], expected.gradients[0]) < 1e-5
    assert largest_difference(result.parameters, expected.parameters) < 1e-5
    curve = run_training(program_of(case), training_of(replace(case, optimizer=ADAMW)), 8, pool=gloo_pool)
    assert curve.losses == pytest.approx(
        reference(MODEL, ADAMW, case.global_batch, 8, torch.float32).losses, rel=1e-4
    )


def test_draws_do_not_know_the_layout(gloo_pool: Pool) -> None:
    layouts = [
        Case("1f1b", 1, 4),
        Case("1f1b", 2, 2, samples=(1, 3)),
        Case("1f1b", 2, 4, "split recompute"),
        Case("1f1b", 2, 2, num_replicas=2),
    ]
    results = [
        run_training(program_of(case), training_of(case, dropout=0.3), 2, pool=gloo_pool, dtype="float64")
        for case in layouts
    ]
    without = run_training(
        program_of(layouts[0]), training_of(layouts[0]), 2, pool=gloo_pool, dtype="float64"
    )
    assert abs(results[0].losses[0] - without.losses[0]) > 1e-6
    for other in results[1:]:
        assert other.losses == pytest.approx(results[0].losses, rel=TOLERANCE)
        for ours, theirs in zip(other.gradients, results[0].gradients, strict=True):
            assert largest_difference(ours, theirs) < TOLERANCE


def test_the_same_job_twice_is_bitwise_the_same(gloo_pool: Pool) -> None:
    case = Case("zb_h1", 2, 4, optimizer=ADAMW, num_replicas=2)
    first, second = (run_training(program_of(case), training_of(case), 3, pool=gloo_pool) for _ in range(2))
    assert first.losses == second.losses
    for name, value in first.parameters.items():
        assert torch.equal(value, second.parameters[name])


def test_it_learns_the_standard_library(gloo_pool: Pool) -> None:
    model = ModelSpec.decoder(2, 32, 2, max_sequence_length=32)
    case = Case("1f1b", 2, 2, model=model, samples=(4, 4), optimizer=replace(ADAMW, learning_rate=1e-2))
    counts = {"microbatches": tuple(m._replace(tokens=4 * 32) for m in program_of(case).tables.microbatches)}
    program = program_of(case).with_tables(**counts)
    training = TrainingConfig(model, (1, 1), 32, case.optimizer, source=Source())
    seen: list[float] = []
    result = run_training(program, training, 30, pool=gloo_pool, progress=lambda it: seen.append(it.loss))
    assert seen == result.losses
    assert result.losses[-1] < 4.0 < 5.3 < result.losses[0]  # 5.55 nats are a uniform guess among bytes


def test_measured_memory_follows_the_program(gloo_pool: Pool) -> None:
    wide = ModelSpec.decoder(8, 32, 2, vocabulary_size=32, max_sequence_length=64)
    peaks = {}
    for name, variant in (("gpipe", "plain"), ("1f1b", "plain"), ("1f1b", "recompute")):
        case = Case(name, 2, 6, variant, model=wide)
        program = program_of(case)
        program = program.with_tables(
            microbatches=tuple(m._replace(tokens=64) for m in program.tables.microbatches)
        )
        training = TrainingConfig(wide, (4, 4), 64, SGD, source=RANDOM)
        result = run_training(program, training, 1, pool=gloo_pool, measures_memory=True)
        assert result.trace is not None and result.trace.num_iterations == 1
        peaks[name, variant] = [peak_bytes(result.trace, device) for device in range(2)]
    parameters = 4 * wide.num_parameters / 2
    (all_first, all_second), (few_first, few_second), (again_first, _) = peaks.values()
    assert all_first - parameters > 2 * (few_first - parameters)  # GPipe keeps six activations, 1F1B two
    assert few_first > few_second and all_second > few_second
    assert again_first < few_first


def test_what_cannot_be_trained_is_refused() -> None:
    clipping = Case("1f1b", 2, 4, optimizer=OptimizerConfig())
    with pytest.raises(ExecutionError, match="clip_norm=None"):
        run_training(program_of(clipping), training_of(clipping), 1)
    with pytest.raises(ExecutionError, match="stages of .* hold 8"):
        TrainingConfig(MODEL, (4, 4), SEQUENCE, SGD)
    case = Case("1f1b", 2, 4)
    program = program_of(case).with_tables(
        microbatches=tuple(m._replace(tokens=9) for m in program_of(case).tables.microbatches)
    )
    with pytest.raises(ExecutionError, match="whole sequences of 8"):
        run_training(program, training_of(case), 1)
    with pytest.raises(ExecutionError, match="for 4 stages, the program has 2"):
        run_training(program_of(case), training_of(Case("1f1b", 4, 4)), 1)
