"""Steps of replicas: one program for a layout, and tables that say the same whatever they were made for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.serving.simulated_case import SMALL, program

from meshwright.planner.serving.replica_steps import SIZES, ReplicaSteps
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.cluster.source import Cluster

ONE = ServingPlan(ReplicaLayout(), max_batch_tokens=100, max_sequences=30)


def test_plans_of_a_layout_share_what_its_steps_take() -> None:
    """The smallest size that holds a plan's limits; beyond all of them, or without any, its own."""
    steps = ReplicaSteps(SMALL, Cluster("2xH100"), "bfloat16", 300)
    small, model = steps.of(ONE)
    assert isinstance(model, StepTable) and (model.most_tokens, model.most_sequences) == SIZES[0]
    assert steps.of(replace(ONE, replicas=2, max_sequences=20)) == (small, model)
    large = steps.of(replace(ONE, max_batch_tokens=SIZES[0][0] + 1))
    assert large[0] is small and isinstance(large[1], StepTable) and large[1].most_tokens == SIZES[1][0]
    beyond = steps.of(replace(ONE, max_batch_tokens=SIZES[1][0] + 1))[1]
    assert isinstance(beyond, StepTable) and beyond.most_tokens == SIZES[1][0] + 1
    alone = ReplicaSteps(SMALL, Cluster("2xH100"), "bfloat16", 300, sizes=()).of(ONE)[1]
    assert isinstance(alone, StepTable) and (alone.most_tokens, alone.most_context) == (100, 300)


@pytest.mark.parametrize("batch", [((0, 70),), ((0, 16), (64, 48)), (), ((20, 9),)])
@pytest.mark.parametrize("decodes", [(0, 0), (1, 40), (7, 900), (16, 3600)])
def test_a_table_for_more_says_the_same(batch: tuple[tuple[int, int], ...], decodes: tuple[int, int]) -> None:
    less, more = StepTable(program(), 96, 24, 256), StepTable(program(), 250, 64, 1000)
    shape = BatchShape.of(batch, *decodes)
    assert less.step(shape).latency_s == pytest.approx(more.step(shape).latency_s, rel=1e-12)
    if decodes[0] and not batch:
        few, many = less.run(*decodes, 20, 1.0), more.run(*decodes, 20, 1.0)
        assert few[0] == many[0] and few[1] == pytest.approx(many[1], rel=1e-12)
