"""What lets a sequence train that one process does not hold: sharing it and recomputing add up, as predicted and measured."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.api.trainings.training import run_training
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge import metrics
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

LENGTH, LIMIT_BYTES = 1024, 13e6
MODEL = ModelSpec.decoder(4, 64, 4, vocabulary_size=256, max_sequence_length=LENGTH, name="long")
RECOMPUTED = {"recompute": "selective_op"}
MISS = 0.05  # of what tensors of a device take at most: how far a prediction may be off


def peaks(pool: Pool, **choices: Any) -> tuple[float, float]:
    """Bytes on the fullest process: as predicted, as measured."""
    cluster = Cluster.detect(int(choices.get("cp", 1)))
    plan = Plan.of(MODEL, cluster, Workload(1, LENGTH), **choices)
    done = run_training(plan, data="random", iterations=1, pool=pool)
    return metrics.peak_bytes(done.predicted), metrics.peak_bytes(done.result.trace)


@pytest.mark.slow
def test_sharing_and_recomputing_together_train_what_one_process_does_not_hold(gloo_pool: Pool) -> None:
    too_large = ({}, RECOMPUTED, {"cp": 2})
    found = [peaks(gloo_pool, **choices) for choices in too_large]
    both = peaks(gloo_pool, cp=2, **RECOMPUTED)
    assert max(both) < LIMIT_BYTES < min(min(each) for each in found)
    for predicted, measured in (*found, both):
        assert abs(measured / predicted - 1) < MISS
