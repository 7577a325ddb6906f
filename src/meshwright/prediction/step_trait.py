"""What a predicted step is made of, by how sure each kind of work is, and what the prediction rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.costs.step.profile import StepProfile
from meshwright.prediction.step_part import HOST_MEMORY, INSIDE, OVERHEAD, WAITING, is_beside
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Basis

MESSAGES = "messages"
MORE_DEVICES = 4  # times as many devices as were ever measured is another network
# Which kind of work a part of a step is; what is not here is bound by memory.
KIND_OF: Mapping[str, str] = {
    "matmul": "products", "attention": "attention", "gap": "host", OVERHEAD: "host", INSIDE: MESSAGES, WAITING: MESSAGES,
    HOST_MEMORY: MESSAGES,
}  # fmt: skip
MEMORY = "memory"
# The first six add up to the step; the others are on top.
UNCERTAIN = (
    *("products", "attention", MEMORY, "host", MESSAGES, "tp between nodes"),
    *("float8", "eager pipelines", "unseen", "run"),
)


def seconds_by_kind(parts: Mapping[str, float], kind_of: Mapping[str, str] = KIND_OF) -> dict[str, float]:
    """What each kind of work takes on the busiest device; what runs beside is not counted."""
    found: dict[str, float] = {}
    for name, seconds in parts.items():
        if not is_beside(name):
            kind = kind_of.get(name, MEMORY)
            found[kind] = found.get(kind, 0.0) + seconds
    return found


def step_shares(
    plan: Plan, cluster: ClusterSpec, parts: Mapping[str, float], basis: Basis
) -> dict[str, float]:
    """Of a step's seconds on the busiest device, the share of each kind of work in UNCERTAIN.

    What it waits for is of messages, as are exchanges inside a stage; these are a kind of their own where tensor parallelism
    leaves the node. "float8" is the share of products in it. 1 or 0: "eager pipelines" between nodes, whose host takes
    part in every message; "unseen", where the prediction is not interpolated; "run".
    """
    kinds = seconds_by_kind(parts)
    total = sum(kinds.values())
    found = dict.fromkeys(UNCERTAIN, 0.0)
    found |= {kind: seconds / total for kind, seconds in kinds.items() if total > 0}
    node = cluster.levels[0].num_devices
    if plan.tp > node and total > 0:
        found["tp between nodes"] = parts.get(INSIDE, 0.0) / total
        found[MESSAGES] -= found["tp between nodes"]
    found["float8"] = found["products"] if plan.float8 else 0.0
    is_between = plan.pp > 1 and plan.num_devices > node
    found["eager pipelines"] = float(is_between and not plan.software_class.fuses_blocks)
    found["unseen"], found["run"] = float(basis != "interpolated"), 1.0
    return found


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
