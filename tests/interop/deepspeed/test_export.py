"""A DeepSpeed JSON: batch, precision and ZeRO, and what it has no key for is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.interop.deepspeed.export import export_deepspeed
from meshwright.interop.exported import ExportError, plan_digest
from meshwright.specs import Cluster, Plan, Workload, load_model

FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
CLUSTER = Cluster("2x8xH100")


def plan_of(model: str = "llama-3.1-8b", **choices: Any) -> Plan:
    chosen = {**FORMATS, "sharding": "zero2", "overlap": (), "software": "eager", **choices}
    return Plan.of(load_model(model), CLUSTER, Workload(64, 1024), **chosen)


def config(**choices: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export_deepspeed(plan_of(**choices), CLUSTER).text)
    return found


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ({"pp": 2}, "pp = 2"),
        ({"cp": 2}, "cp = 2"),
        ({"tp": 2, "sequence_parallel": True}, "AutoTP"),
        ({"tp": 2, "sharding": "zero3"}, "stages 0 to 2"),
        ({"model": "mixtral-8x7b", "ep": 2, "sharding": "zero3"}, "stages 0 to 2"),
        ({"model": "mixtral-8x7b", "ep": 2, "tp": 2}, "whole layers"),
        ({"tp": 2, "overlap": ("tp",)}, "waits"),
        ({"sharding": "none", "overlap": ("reduce",)}, "without ZeRO"),
        ({"overlap": ("reduce", "gather")}, "after the step"),
        ({"sharding": "zero3", "overlap": ("reduce",)}, "both directions"),
        ({"sharding_degree": 4}, "all data-parallel ranks"),
        ({"float8": "tensorwise"}, "float8"),
        ({"recompute": "selective"}, "whole blocks"),
        ({"recompute": "full", "recompute_blocks": (8,)}, "recompute_blocks = 8"),
        ({"attention": "unfused"}, "model's code"),
        ({"master_dtype": ""}, "float32"),
        ({"dtype": "float16", "sharding": "none"}, "sums gradients in float16"),
        ({"schedule": "gpipe"}, "no schedule"),
        ({"software": "fused"}, "eager"),
    ],
)
def test_what_it_has_no_key_for(choices: dict[str, Any], word: str) -> None:
    with pytest.raises(ExportError) as error:
        config(**choices)
    assert word in str(error.value)


def test_batch_sizes_agree() -> None:
    found = config(tp=2, microbatch_size=4)
    assert found["train_batch_size"] == 64
    assert found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * 8 == 64


@pytest.mark.parametrize(("sharding", "stage"), [("none", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_stages_of_zero(sharding: str, stage: int) -> None:
    assert config(sharding=sharding)["zero_optimization"] == {"stage": stage, "overlap_comm": False}


def test_gradients_have_one_format_said_twice() -> None:
    found = config(reduction_dtype="")
    assert found["communication_data_type"] == found["data_types"]["grad_accum_dtype"] == "bf16"


def test_the_text_names_its_plan_and_what_it_lacks() -> None:
    plan = plan_of(recompute="full")
    found = export_deepspeed(plan, CLUSTER)
    assert plan_digest(plan) in json.loads(found.text)["tensorboard"]["job_name"]
    assert any("checkpointing" in line for line in found.left_open)
    assert any("sequence length" in line for line in found.left_open)
