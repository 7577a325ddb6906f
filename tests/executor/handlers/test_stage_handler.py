"""Stages without blocks, some without any parameter: with a split backward they owe nothing, and W finds nothing amiss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.training_case import SEQUENCE, SGD, largest_difference, reference

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

BATCH, ITERATIONS, TOLERANCE = 4, 1, 1e-10
MODEL = ModelSpec.decoder(2, 16, 2, num_kv_heads=1, vocabulary_size=36, max_sequence_length=SEQUENCE)


@pytest.mark.parametrize(
    ("choices", "layers"),
    [
        # the stages behind the third pass on what they get; the last one has the head
        ({"schedule": "zbv"}, (0, 1, 1, 0, 0, 0, 0, 0)),
        ({"schedule": "interleaved_1f1b", "split_backward": True}, (0, 1, 1, 0, 0, 0, 0, 0)),
        # neither the first nor the last stage has parameters of its own: words and head are split over all devices
        ({"schedule": "zb_h1", "vocabulary": "one_barrier"}, (0, 1, 1, 0)),
    ],
)
def test_stages_without_blocks_train_as_one_process(
    choices: dict[str, Any], layers: tuple[int, ...], gloo_pool: Pool
) -> None:
    model = replace(MODEL, has_tied_embeddings="vocabulary" in choices)
    plan = Plan.of(model, Cluster("4xcpu"), Workload(BATCH, SEQUENCE), pp=4, dtype="float64", **choices)
    assert plan.layers_per_stage == layers
    training = TrainingConfig(
        model, layers, SEQUENCE, SGD, source=RANDOM, records_gradients=True, layout=TensorLayout.of(plan)
    )
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    result = run_training(program, training, ITERATIONS, pool=gloo_pool, dtype="float64")
    expected = reference(model, SGD, BATCH, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE
