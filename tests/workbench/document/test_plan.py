"""A plan's document says what the prediction says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.workbench.reading import read, section, values

from meshwright import Cluster, Model, Workload
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.document.plan import plan_document
from meshwright.workbench.document.segments import segments_document


@pytest.fixture(scope="module")
def found() -> Predicted:
    model, cluster = Model("llama-3.1-8b"), Cluster("2x8xH100")
    plan = Plan.of(
        model, cluster, Workload(32, 4096), pp=4, tp=2, dtype="bfloat16", master_dtype="float32",
        reduction_dtype="float32", sharding="zero1", sequence_parallel=True,
    )  # fmt: skip
    return predict(plan, cluster)


def test_it_says_the_step_its_parts_and_every_group_of_devices(found: Predicted) -> None:
    data = read(plan_document(found))
    (trace,) = section(data, "timeline")["traces"]
    assert [each["count"] for each in trace["groups"]] == [4] * 4  # dp 2 x tp 2 do the same
    assert data["facts"][0]["name"] == "time of a step"
    composition = section(data, "composition")
    assert composition["total_s"] == pytest.approx(found.step.value)
    assert sum(part["seconds"] for part in composition["parts"]) == pytest.approx(composition["total_s"])
    critical = values(trace["columns"]["critical"]).astype(bool)
    ends = values(trace["columns"]["end_s"])
    assert ends[critical].max() == ends.max()


@pytest.mark.parametrize(
    "fields",
    [
        {"pp": 2, "tp": 1},  # gradients are reduced layer by layer
        {"pp": 2, "tp": 1, "sharding": "zero3"},
        {"pp": 2, "tp": 2, "schedule": "interleaved_1f1b", "num_chunks": 2},
        {"pp": 4, "tp": 1, "schedule": "zbv"},
        {"pp": 3, "tp": 2, "layers_per_stage": (7, 5, 4)},
    ],
)
def test_rows_name_the_stages_of_the_plan_whatever_the_program_cuts_them_into(fields: dict[str, Any]) -> None:
    cluster = Cluster("6xH100" if fields["pp"] == 3 else "8xH100")
    plan = Plan.of(Model("llama-3.2-1b"), cluster, Workload(16, 1024), dtype="bfloat16", **fields)
    made = predict(plan, cluster, extrapolate=True)
    (trace,) = section(read(plan_document(made, parts=("timeline",))), "timeline")["traces"]
    columns = trace["columns"]
    computes = [place for place, lane in enumerate(trace["lanes"]) if lane["stream"] == "compute"]
    is_compute = np.isin(values(columns["lane"]), computes)
    stages = values(columns["stage"])
    assert set(stages.tolist()) <= set(stages[is_compute].tolist()) == set(range(plan.num_stages))
    if plan.num_chunks == 1:
        device = np.array([lane["device"] for lane in trace["lanes"]])[values(columns["lane"])]
        assert (device == stages).all()


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_inside_of_a_stage_is_of_its_own_device_also_where_stages_are_uneven(stage: int) -> None:
    cluster = Cluster("6xH100")
    plan = Plan.of(
        Model("llama-3.2-1b"), cluster, Workload(6, 1024), pp=3, tp=2, layers_per_stage=(8, 5, 3),
        dtype="bfloat16", sequence_parallel=True,
    )  # fmt: skip
    data = read(segments_document(plan.placed(cluster), cluster, stage, most_rows=100_000))
    (trace,) = section(data, "timeline")["traces"]
    assert trace["devices"] == [f"pp{stage}"]
    assert set(values(trace["columns"]["stage"]).tolist()) == {stage}


def test_memory_is_that_of_the_ledger_under_the_cap(found: Predicted) -> None:
    (trace,) = section(read(plan_document(found, parts=("timeline", "memory"))), "timeline")["traces"]
    assert trace["cap_bytes"] == found.cluster.memory_bytes
    assert [curve["device"] for curve in trace["memory"]] == [0, 1, 2, 3]
    for curve in trace["memory"]:
        held = values(curve["bytes"])
        assert held.max() > held[0] > 0, "parameters stay, and activations come and go"
        assert (np.diff(values(curve["time_s"])) >= 0).all()


def test_messages_between_stages_are_counted(found: Predicted) -> None:
    links = section(read(plan_document(found, parts=("topology",))), "topology")["links"]
    forward = [link for link in links if (link["from"], link["to"]) == ("device0", "device1")]
    plan = found.plan
    of_one = (
        plan.microbatch_size
        * plan.workload.sequence_length
        * plan.model.dimensions()["hidden_size"]
        * 2
        / plan.tp
    )
    assert [link["bytes"] for link in forward] == [pytest.approx(of_one * plan.num_microbatches)]


def test_only_what_is_asked_for_is_made(found: Predicted) -> None:
    assert [each["type"] for each in read(plan_document(found, parts=("composition",)))["sections"]] == [
        "composition"
    ]
    binds = section(read(plan_document(found, parts=("binds",))), "binds")["items"]
    shares = [item["share"] for item in binds]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0


def test_a_plan_that_does_not_fit_says_so_first() -> None:
    model, cluster = Model("llama-3.1-70b"), Cluster("8xH100")
    plan = Plan.of(model, cluster, Workload(8, 4096), dtype="bfloat16")
    assert read(plan_document(predict(plan, cluster), parts=()))["notes"][0].startswith("does not fit")


def test_a_name_is_text_and_json_is_strict(found: Predicted) -> None:
    assert "NaN" not in plan_document(found).text() and "Infinity" not in plan_document(found).text()
    json.loads(plan_document(found).text(), parse_constant=lambda word: pytest.fail(word))
