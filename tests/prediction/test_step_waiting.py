"""What the busiest device waits for: bubble and messages sum to the prediction's waiting, each where it belongs."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.prediction.predicted import predict
from meshwright.prediction.step_waiting import step_waiting
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.config.source import load_model

CLUSTER = Cluster("2x8xH100")


def plan(**choices: Any) -> Plan:
    return Plan.of(load_model("llama-3.2-1b"), CLUSTER, Workload(64, 2048), dtype="bfloat16", **choices)


@pytest.mark.parametrize(
    "choices",
    [
        {"pp": 4, "tp": 2},
        {"pp": 1, "sharding": "zero1"},
        {"pp": 4, "sharding": "zero1", "passes": ("offload_optimizer",)},
    ],
)
def test_both_sum_to_the_waiting_of_the_prediction(choices: dict[str, Any]) -> None:
    found, parts = step_waiting(predict(plan(**choices), CLUSTER)), predict(plan(**choices), CLUSTER).parts
    assert found.bubble_s + found.exposed_s == pytest.approx(parts.get("waiting", 0.0), abs=1e-9)


def test_without_stages_nothing_but_messages_is_waited_for() -> None:
    found = step_waiting(predict(plan(pp=1), CLUSTER))
    assert found.bubble_s == pytest.approx(0.0, abs=1e-9) and found.exposed_s > 0


def test_fewer_microbatches_in_a_pipeline_are_more_bubble() -> None:
    few, many = (step_waiting(predict(plan(pp=4, microbatch_size=size), CLUSTER)) for size in (4, 1))
    assert few.bubble_s > many.bubble_s > 0
