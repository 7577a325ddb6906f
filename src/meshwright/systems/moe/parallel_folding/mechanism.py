"""Attention and experts folded apart, as a planner; and the paper's models by the best plan of every way to divide them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from meshwright.planner.search.proposal import Proposal
from meshwright.planner.search.search import search
from meshwright.planner.space.check import check_open
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload

DEVICE = "H100"
BATCH, LENGTH = 256, 4096
FORMATS: Mapping[str, Any] = {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"}
NUM_SIMULATED = 4  # of every way to divide a model: the form's best few
MEGATRON: Mapping[str, Any] = {
    "sharding": "zero1", "schedule": ("1f1b", "interleaved_1f1b"), "mesh_order": "pp-dp-cp-tp", "layers": "even",
    "recompute": ("none", "selective", "full"),
}  # fmt: skip
OVERLAP = (
    "reduce",
    "gather",
)  # of the table's runs: tokens did not travel beside another microbatch's computes
AS_ATTENTION, WHOLE = 0, 1  # of etp: experts are divided as attention is, or whole on a device
# What each of the table's columns may choose.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "FSDP": {"pp": 1, "tp": 1, "cp": 1, "ep": 1, "sharding": "zero3"},
    "FSDP+EP": {"pp": 1, "tp": 1, "cp": 1, "ep": (2, 4, 8), "sharding": "zero3"},
    "TP+EP+DP": {**MEGATRON, "pp": 1, "cp": 1, "schedule": "1f1b"},
    "MCore": {
        **MEGATRON,
        "cp": 1,
        "etp": AS_ATTENTION,
    },  # experts lie along dp: with cp they would take in that as well
    "folded": MEGATRON,
}


def planned(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Proposal:
    """As a planner: the best plans with experts folded as they like, behind the best that divides them as attention.

    Raises PlanError where etp is fixed, which is decided here; OutOfMemoryError where nothing fits.
    """
    check_open(fix, ("etp",))
    usual = {**FORMATS, **MEGATRON, **fix}
    found = [search(model, cluster, workload, fix={**usual, **more}, num_simulated=NUM_SIMULATED)
             for more in ({"etp": WHOLE}, {"etp": AS_ATTENTION})]  # fmt: skip
    folded, divided = (each[0] for each in found)
    gain = divided.step.value / folded.step.value - 1
    note = f"experts folded apart from attention: {gain:.1%} faster than the best plan that divides them as attention"
    plans = [each.plan for each in found[0]] + [divided.plan]
    return Proposal(tuple(dict.fromkeys(plans)), (note,))


def model_of(name: str) -> ModelSpec:
    """A model of the table. Raises UnknownNameError."""
    if name == "Mixtral-8x22B":
        return load_model("mixtral-8x22b")
    if name == "8x22B-G8T8":  # eight times as many experts, an eighth as wide, eight of them for a token
        return load_model("mixtral-8x22b").changed(
            num_experts=64, num_experts_per_token=8, expert_intermediate_size=16384 // 8, name=name
        )
    if name == "Llama3-8x70B":  # every MLP of Llama 3 70B eight times
        return load_model("llama-3.1-70b").changed(
            architecture="mixtral", num_experts=8, num_experts_per_token=2, expert_intermediate_size=28672, name=name
        )  # fmt: skip
    if (
        name == "Qwen2-57B-A14B"
    ):  # config.json, as tests of NVIDIA/TensorRT-LLM have it (modeling of Qwen's experts)
        return ModelSpec.decoder(
            28, 3584, 28, num_kv_heads=4, intermediate_size=18944, vocabulary_size=151936,
            max_sequence_length=131072, name=name,
        ).changed(
            architecture="qwen2_moe", num_experts=64, num_experts_per_token=8, expert_intermediate_size=2560,
            shared_intermediate_size=20480,
        )  # fmt: skip
    raise UnknownNameError(
        "model of Parallel Folding", name, ("Mixtral-8x22B", "8x22B-G8T8", "Llama3-8x70B", "Qwen2-57B-A14B")
    )


@cache
def best(
    name: str, devices: int, way: str, batch: int = BATCH, length: int = LENGTH, float8: str = ""
) -> Predicted:
    """The fastest predicted plan of a model that a way allows.

    Raises:
        UnknownNameError: there is no such model or way.
        OutOfMemoryError: nothing fits.
    """
    if way not in WAYS:
        raise UnknownNameError("way of Parallel Folding", way, WAYS)
    model, cluster = model_of(name), Cluster(f"{devices}x{DEVICE}")
    if length > model.max_sequence_length:
        model = model.changed(max_sequence_length=length)
    fix = {**FORMATS, "overlap": OVERLAP, **WAYS[way], **({"float8": float8} if float8 else {})}
    foldings = (WHOLE, AS_ATTENTION) if way == "folded" else (AS_ATTENTION,)
    found = [
        search(model, cluster, Workload(batch, length), fix={**fix, "etp": etp}, num_simulated=NUM_SIMULATED)[
            0
        ]
        for etp in foldings
    ]
    return min(found, key=lambda each: each.step.value)
