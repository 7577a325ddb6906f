"""DeepSpeed's JSON as a plan; the model is the user's to say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.interop import Given, Imported
from meshwright.interop.deepspeed.config import import_deepspeed
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500000000},
}


def read(config: dict[str, Any], **given: Any) -> Imported:
    everything = {
        "model": load_model("llama-3.2-1b"),
        "cluster": "8xA100-80",
        "sequence_length": 2048,
        **given,
    }
    return import_deepspeed(json.dumps(config), "ds.json", Given(**everything))


def test_sizes_and_formats_become_fields() -> None:
    plan = read(CONFIG).plan
    assert (plan.workload.global_batch, plan.microbatch_size, plan.num_microbatches, plan.dp) == (64, 2, 4, 8)
    assert (plan.sharding, plan.overlap, plan.dtype, plan.master_dtype) == (
        "zero2",
        ("reduce",),
        "bfloat16",
        "float32",
    )


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"zero_optimization": {"stage": 3}}, {"sharding": "zero3", "overlap": ("reduce", "gather")}),
        ({"zero_optimization": {"stage": 1}}, {"sharding": "zero1", "overlap": ()}),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, {"dtype": "float16"}),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, {"reduction_dtype": "float32"}),
        ({"activation_checkpointing": {"partition_activations": False}}, {"recompute": "full"}),
        ({"tensor_parallel": {"autotp_size": 2}}, {"tp": 2, "dp": 4}),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}, {"microbatch_size": 2}),
    ],
)
def test_changes_become_fields(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    plan = read({**CONFIG, **changes}).plan
    assert {name: getattr(plan, name) for name in fields} == fields


def test_offload_and_new_keys_are_listed() -> None:
    zero = {
        "stage": 2,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "none"},
        "novel": 1,
    }
    found = read(
        {
            **CONFIG,
            "zero_optimization": zero,
            "optimizer": {"type": "AdamW"},
            "elasticity": {"enabled": False},
        }
    )
    unknown = {option.name for option in found.unknown}
    assert unknown == {"zero_optimization.offload_optimizer", "zero_optimization.novel"}
    assert {"optimizer", "elasticity", "zero_optimization.offload_param"} == {
        option.name for option in found.irrelevant
    }


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        (CONFIG, {"model": None}, ("--model",)),
        (CONFIG, {"sequence_length": None}, ("--seq",)),
        (CONFIG, {"cluster": ""}, ("--cluster",)),
        ({"bf16": {"enabled": True}}, {}, ("--micro-batch",)),
        ({**CONFIG, "train_batch_size": 63}, {}, ("63", "--gpus")),
        ({**CONFIG, "zero_optimization": {"stage": 4}}, {}, ("stage",)),
        ({**CONFIG, "zero_optimization": True}, {}, ("zero_optimization",)),
        ({**CONFIG, "bf16": True}, {}, ("bf16",)),
        ({**CONFIG, "tensor_parallel": {"autotp_size": "x"}}, {}, ("autotp_size",)),
    ],
)
def test_what_is_missing_is_told_with_its_flag(
    config: dict[str, Any], given: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError) as told:
        read(config, **given)
    assert all(word in str(told.value) for word in words), str(told.value)


def test_no_json_is_told() -> None:
    with pytest.raises(PlanError, match="JSON"):
        import_deepspeed("x", "ds.json", Given())
