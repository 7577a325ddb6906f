"""The planner: parts by this model's own layer on this cluster; one part where nothing is sent."""

from __future__ import annotations

import pytest

from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.plan.workload import Workload
from meshwright.systems.moe.fs_moe.planner import planned, priced_layer, step_seconds

FIX = {"dtype": "bfloat16", "dp": 16, "sharding": "zero1", "microbatch_size": 4}
CLUSTER = Cluster("2x8xA100-80", nic="100Gb/s")
MODEL = load_model("mixtral-8x7b")


def test_parts_stand_in_the_order_of_the_closed_form() -> None:
    found = planned(MODEL, CLUSTER, Workload(64, 4096), FIX)
    layer = priced_layer(found[0], CLUSTER)
    seconds = [step_seconds(layer, each.token_parts) for each in found]
    assert sorted(each.token_parts for each in found) == [1, 2, 4] and seconds == sorted(seconds)
    assert found[0].ep == 8 and found[0].token_parts > 1 and "is taken" in found.notes[0]
    assert layer.all_to_all.seconds() > 0 and layer.expert.seconds() > 0


def test_a_dense_model_has_one_part() -> None:
    (plan,) = planned(load_model("llama-3.2-1b"), CLUSTER, Workload(64, 2048), {"dtype": "bfloat16"})
    assert plan.token_parts == 1


def test_parts_are_decided_here() -> None:
    with pytest.raises(PlanError, match="token_parts"):
        planned(MODEL, CLUSTER, Workload(64, 4096), {**FIX, "token_parts": 2})
