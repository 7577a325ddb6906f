"""Traits of a plan that decide how sure its predicted step is, and what the prediction rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.costs.step.profile import StepProfile
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Basis

# Others were tried (attention, experts, exchanges inside a stage, gaps): left-out errors do not grow with them.
TRAITS = ("float8", "full_recompute", "waiting")
# Parts that run on other streams; what the step waits for of them is in "waiting".
BESIDE = (
    *(
        "UNSHARD",
        "SCATTER_GRAD",
        "REDUCE_GRAD",
        "SUM_GRAD",
        "GATHER_PARAM",
        "SEND_F",
        "SEND_B",
        "RECV_F",
        "RECV_B",
    ),
    *("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE", "MAXIMUM"),  # between segments
)
MORE_DEVICES = 4  # times as many devices as were ever measured is another network


def step_traits(plan: Plan, parts: Mapping[str, float]) -> dict[str, float]:
    """Choices that software makes differently (1 where the plan has them, recompute by its share of the blocks), and the
    share of the step in which the busiest device waits: bubbles, and communication that nothing runs beside."""
    beside = sum(parts.get(name, 0.0) for name in BESIDE)
    total = sum(parts.values()) - beside
    is_full = plan.recompute == "full"
    return {
        "float8": 1.0 if plan.float8 else 0.0,
        "full_recompute": sum(plan.num_recomputed_blocks) / plan.model.num_layers if is_full else 0.0,
        "waiting": parts.get("waiting", 0.0) / total if total > 0 else 0.0,
    }


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
