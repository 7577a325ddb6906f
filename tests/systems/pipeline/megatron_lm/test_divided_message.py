"""Messages divided over tensor-parallel devices: bytes by hand, and what the division gains."""

from __future__ import annotations

import pytest

from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.pipeline.megatron_lm.divided_message import divided_message_speed_up, message_bytes

CLUSTER = Cluster("2x8xA100-80")
MODEL = ModelSpec.decoder(8, 4096, 32, vocabulary_size=32_000, max_sequence_length=2048)


def plan(tp: int, pp: int = 2) -> Plan:
    return Plan.of(MODEL, CLUSTER, Workload(8, 2048), pp=pp, tp=tp, dp=16 // (pp * tp), dtype="bfloat16")


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_device_sends_its_share(tp: int) -> None:
    assert message_bytes(plan(tp), CLUSTER) == 2048 * 4096 * 2 / tp


def test_dividing_gains_where_there_is_something_to_divide() -> None:
    assert divided_message_speed_up(plan(1), CLUSTER) == 1.0
    assert divided_message_speed_up(plan(8), CLUSTER) > 1.0


def test_one_stage_sends_nothing() -> None:
    with pytest.raises(PlanError, match="sends nothing"):
        message_bytes(plan(8, pp=1), CLUSTER)
