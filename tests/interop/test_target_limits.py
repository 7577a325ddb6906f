"""Regions of a target: what lies in them is said, and what they rule out is refused."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.interop.export import export_plan
from meshwright.interop.exported import ExportError
from meshwright.interop.target_limits import Region, regions
from meshwright.specs import Cluster, Plan, Workload, load_model

CLUSTER = Cluster("2x8xH100")
FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
BOTH = ("reduce", "gather")


def plan(name: str = "llama-3.1-8b", **choices: Any) -> Plan:
    return Plan.of(load_model(name), CLUSTER, Workload(64, 4096), **{**FORMATS, **choices})


def allows(region: Region, made: Plan) -> bool:
    """Whether a plan lies in a region."""
    for name, value in region.fix.items():
        found: Any = getattr(made, name, None)
        if name == "mesh_order":
            found = "-".join(made.mesh_order)
        elif name == "recompute_blocks":
            found = max(made.recompute_blocks, default=0)
        is_among = isinstance(value, tuple) and name != "overlap"
        if (found not in value) if is_among else (found != value):
            return False
    return True


@pytest.mark.parametrize(
    ("target", "choices"),
    [
        ("megatron", {"tp": 2, "pp": 2, "sharding": "zero1", "overlap": BOTH}),
        ("megatron", {"schedule": "zb_h1", "pp": 2}),
        ("megatron", {"recompute": "selective_op"}),
        ("megatron", {"recompute": "full", "recompute_blocks": (16,)}),
        ("megatron", {"recompute": "selective", "recompute_blocks": (16,)}),
        ("deepspeed", {"recompute": "full", "recompute_blocks": (16,), "overlap": ()}),
        ("torchtitan", {"sharding": "zero1", "overlap": BOTH}),
        ("torchtitan", {"sharding": "zero3", "overlap": BOTH}),
        ("torchtitan", {"sharding": "zero3", "tp": 2, "overlap": BOTH}),
        ("torchtitan", {"sharding": "zero3", "tp": 2, "sequence_parallel": True, "overlap": BOTH}),
        ("torchtitan", {"sharding": "zero3", "recompute": "selective", "overlap": BOTH}),
        ("torchtitan", {"overlap": ("reduce",)}),
        ("torchtitan", {"overlap": ("reduce",), "pp": 2}),
        ("deepspeed", {"sharding": "zero1", "overlap": BOTH}),
        ("deepspeed", {"sharding": "zero1", "overlap": ("reduce",)}),
        ("deepspeed", {"sharding": "zero3", "overlap": BOTH}),
        ("deepspeed", {"sharding": "zero3", "overlap": BOTH, "tp": 2}),
        ("deepspeed", {"overlap": ()}),
        ("deepspeed", {"overlap": ("reduce",)}),
        ("deepspeed", {"overlap": (), "pp": 2}),
        ("deepspeed", {"overlap": (), "cp": 2}),
    ],
)
def test_the_regions_hold_what_the_export_says(target: str, choices: dict[str, Any]) -> None:
    software = {"megatron": "fused", "torchtitan": "compiled", "deepspeed": "eager"}[target]
    made = plan(software=software, **choices)
    try:
        export_plan(made, target, CLUSTER)
        is_said = True
    except ExportError:
        is_said = False
    assert any(allows(region, made) for region in regions(target, made)) == is_said


def test_experts_and_overlap_of_tensor_parallelism_need_sequence_parallelism_in_megatron() -> None:
    assert not any({"tp", "sequence_parallel"} & set(region.fix) for region in regions("megatron", plan()))
    for made in (plan("mixtral-8x7b"), plan(tp=2, sequence_parallel=True, overlap=("tp",))):
        found = regions("megatron", made)
        assert {region.fix.get("tp") for region in found} == {1, None}
        assert {region.fix.get("sequence_parallel") for region in found} == {True, None}


def test_a_name_without_limits_has_one_region_of_everything() -> None:
    assert regions("", plan()) == (Region(),) and str(Region()) == "everything"
