"""A predicted step beside a log: ratio, interval, what explains a difference, and the factor of a profile."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from meshwright.costs.step.step_costs import StepConstants
from meshwright.evidence.log_comparison import (
    KINDS,
    LogComparison,
    compare_log,
)
from meshwright.interop.training_log import MeasuredRun
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_part import ADDS_UP
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.config.source import load_model
from meshwright.specs.plan.prediction import Prediction

PARTS = {"waiting": 2.0, "matmul": 6.0, "gap": 0.5, "REDUCE_GRAD": 3.0, "nothing": 0.0}
CLUSTER = Cluster("8xH100")
PLAN = Plan.of(ModelSpec.decoder(2, 64, 4), CLUSTER, Workload(8, 16))


def compared(measured_s: float, plan: Plan = PLAN, batch: int | None = None) -> LogComparison:
    steps = np.array([measured_s - 0.1, measured_s, measured_s + 0.1])
    run = MeasuredRun(steps, "megatron", 1, global_batch=batch)
    return compare_log(Prediction.within(10.0, 0.1, "interpolated"), PARTS, run, plan)


def test_ratio_and_interval() -> None:
    found = compared(10.5)
    assert found.ratio == pytest.approx(1.05) and found.is_inside
    assert not compared(11.5).is_inside and not compared(8.5).is_inside


def test_parts_are_told_largest_first_with_what_they_would_have_to_be() -> None:
    found = compared(11.5)
    assert [part.name for part in found.parts] == ["matmul", "REDUCE_GRAD", "waiting", "gap"]
    assert [part.name for part in found.binding] == ["matmul", "waiting", "gap"]
    assert [part.needed for part in found.binding] == pytest.approx([7.5 / 6, 3.5 / 2, 4.0])


def test_what_runs_beside_computes_explains_nothing_by_itself() -> None:
    found = compared(11.5)
    assert found.beside == {"reducing gradients": 3.0}
    assert [part.needed for part in found.parts if part.name == "REDUCE_GRAD"] == [None]


def test_words_are_of_every_part_that_adds_up_to_a_step_and_call_nothing_else_one() -> None:
    assert {name for name, kind in KINDS.items() if not kind.is_beside} == ADDS_UP


def test_a_part_that_is_too_short_cannot_explain_a_faster_run() -> None:
    found = compared(9.0)
    assert {part.name: part.needed for part in found.parts} == {
        "matmul": pytest.approx(5 / 6),
        "waiting": pytest.approx(0.5),
        "gap": None,
        "REDUCE_GRAD": None,
    }
    assert "cannot be it alone" in found.differences()[-1]


def test_the_constants_of_the_parts_are_named() -> None:
    movable = compared(12.0).movable
    assert movable == ("matmul", "node_exchange", "network_exchange", "jitter", "gap_s")
    assert "float8" in compared(12.0, plan=PLAN.changed(dtype="bfloat16", float8="tensorwise")).movable


def test_constants_are_those_of_the_model_of_a_step() -> None:
    known = {field.name for field in fields(StepConstants)}
    assert {name for kind in KINDS.values() for name in kind.constants} <= known


def test_every_part_of_a_real_prediction_is_explained() -> None:
    cluster = Cluster("2x8xH100")
    plan = Plan.of(
        load_model("llama-3.1-8b"), cluster, Workload(32, 4096), pp=2, tp=2, cp=2, dp=2, dtype="bfloat16",
        sequence_parallel=True, sharding="zero1", overlap=("reduce", "gather"),
    )  # fmt: skip
    sharded = Plan.of(
        load_model("llama-3.1-8b"), cluster, Workload(16, 4096), dtype="bfloat16", sharding="zero3"
    )
    for each in (plan, sharded):
        found = predict(each, cluster)
        assert set(found.parts) <= set(KINDS)
        # What does not run beside computes adds up to the step.
        total = sum(seconds for name, seconds in found.parts.items() if not KINDS[name].is_beside)
        assert total == pytest.approx(found.step.value, rel=1e-6)


def test_a_log_of_another_batch_is_doubted() -> None:
    assert compared(12.0, batch=8).doubts == () == compared(12.0).doubts
    assert "16" in compared(12.0, batch=16).doubts[0] == compared(12.0, batch=16).mistaken


def test_plain_data() -> None:
    data = compared(11.5).to_dict()
    assert data["predicted_s"] == 10.0 and data["measured"]["median_s"] == 11.5
    assert data["measured"]["num_warm_up"] == 1 and len(data["parts"]) == 4
    assert data["binding"] == "matmul" and data["step_factor"] == pytest.approx(1.15)
