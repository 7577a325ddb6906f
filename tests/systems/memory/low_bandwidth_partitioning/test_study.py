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


def between_nodes_bytes(sharding: str, pool: Pool) -> float:
    """Bytes that the last process of the first node sends to the second: all but what stays between two neighbours."""
    sent = pool.run(study.slow_link_job(sharding, 1)).sent_bytes[1]
    inside = {"UNSHARD", "SCATTER_GRAD"} if "gradients=2" in sharding else {"UNSHARD"}
    kept = set() if sharding == "zero3" else inside
    return sum(count for name, count in sent.items() if name not in kept)


def test_shardings_send_fewer_bytes_between_nodes_in_their_order(gloo_pool: Pool) -> None:
    topology, weights, everybody = (between_nodes_bytes(one, gloo_pool) for one in study.SHARDINGS)
    parameters = study.slow_link_job("zero3", 1).program.tables.groups[0].bytes
    # each of the two shares half of the gradients between nodes, and half of the stepped weights come back
    assert topology == pytest.approx(parameters / 2 * (1 / 2 + 1 / 2), rel=0.01)
    # four microbatches scatter over all, and half of the stepped weights come back; ZeRO-3 gathers three quarters instead
    assert weights == pytest.approx(parameters * (4 * 3 / 4 + 1 / 4), rel=0.01)
    assert everybody == pytest.approx(parameters * (4 * 3 / 4 + 3 / 4), rel=0.01)


@pytest.mark.slow
def test_the_fewer_bytes_between_nodes_the_faster_on_slow_links(gloo_pool: Pool) -> None:
    assert study.num_ordered_on_slow_links(8, gloo_pool) == 2
