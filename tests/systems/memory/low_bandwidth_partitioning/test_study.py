"""Partitioned states executed: four processes are one, on any cut; quantised training stays close, and is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.systems.memory.low_bandwidth_partitioning import study
from meshwright.systems.memory.low_bandwidth_partitioning.mechanism import Mesh
from meshwright.systems.memory.low_bandwidth_partitioning.ops import PartitionedTraining

SMALL = PartitionedTraining(num_blocks=1, sequence_length=16, batch=2)


@pytest.mark.parametrize(
    ("mesh", "num_microbatches"), [(Mesh(2, 1, 2), 1), (Mesh(1, 2, 2), 2), (Mesh(2, 2, 1), 1)], ids=str
)
def test_many_processes_are_one(mesh: Mesh, num_microbatches: int, gloo_pool: Pool) -> None:
    training = replace(SMALL, num_microbatches=num_microbatches)
    ours, alone = study.train(training, 3, gloo_pool, mesh), study.train_alone(training, 3, 4)
    assert ours.loss == pytest.approx(alone.loss, rel=1e-10)
    pairs = zip(ours.weights, alone.weights, strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-8


def test_quantised_steps_differ_a_little(gloo_pool: Pool) -> None:
    plain = study.train(SMALL, 3, gloo_pool)
    quantised = study.train(replace(SMALL, weight_bits=8, gradient_bits=4), 3, gloo_pool)
    assert quantised.loss == pytest.approx(plain.loss, rel=0.02) and quantised.loss != plain.loss


@pytest.mark.slow
def test_the_claims_hold(gloo_pool: Pool) -> None:
    assert study.parameter_difference(gloo_pool) < 1e-5
    assert study.loss_ratio(gloo_pool) == pytest.approx(1.0, abs=0.01)
