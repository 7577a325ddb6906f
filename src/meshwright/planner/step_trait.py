"""Traits of a plan that decide how sure its predicted step is, and what the prediction rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.costs.step_profile import StepProfile
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import Plan
from meshwright.specs.prediction import Basis

# Each is a share of the step, or 1 where the plan has it: see `step_traits`.
TRAITS = ("attention", "attention_portable", "experts", "float8", "full_recompute", "exchanges", "waiting", "small")
LARGE_STEP_S = 0.5  # of a microbatch on one device; shorter ones are bound by what is not counted
MORE_DEVICES = 4  # times as many devices as were ever measured is another network


def step_traits(plan: Plan, cluster: ClusterSpec, parts: Mapping[str, float]) -> dict[str, float]:
    """Shares of the busiest device's time that are known less well than products, and choices that differ by software."""
    total = sum(value for name, value in parts.items() if name not in _BESIDE) or 1.0
    attention = parts.get("attention", 0.0) / total
    is_portable = not plan.software_class.has_native_attention
    return {
        "attention": attention,
        "attention_portable": attention if is_portable and cluster.devices[0].name[0] not in "AV" else 0.0,
        "experts": 1.0 if plan.model.num_experts else 0.0,
        "float8": 1.0 if plan.float8 else 0.0,
        "full_recompute": 1.0 if plan.recompute == "full" else 0.0,
        "exchanges": parts.get("exchanges inside, host", 0.0) / total,
        "waiting": parts.get("waiting", 0.0) / total,
        "small": (parts.get("gap", 0.0) + parts.get("step overhead", 0.0)) / total,
    }


_BESIDE = ("UNSHARD", "REDUCE_GRAD", "GATHER_PARAM", "SEND_F", "SEND_B", "RECV_F", "RECV_B")


def step_basis(plan: Plan, cluster: ClusterSpec, profile: StepProfile) -> Basis:
    """Interpolated where steps of this device, precision and kind of model were measured on about as many devices;
    otherwise extrapolated."""
    known: Mapping[str, Any] = profile.seen.get(cluster.devices[0].name, {})
    is_known = (
        bool(known)
        and plan.num_devices <= MORE_DEVICES * int(known["most_devices"])
        and (not plan.float8 or bool(known["float8"]))
        and (not plan.model.num_experts or bool(known["experts"]))
    )
    return "interpolated" if is_known else "extrapolated"
