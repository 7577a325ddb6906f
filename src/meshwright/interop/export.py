"""Plans in other programs' words: a Megatron-LM launch, a torchtitan TOML, a DeepSpeed JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.interop.export_deepspeed import export_deepspeed
from meshwright.interop.export_megatron import export_megatron
from meshwright.interop.export_torchtitan import export_torchtitan
from meshwright.interop.exported import Exported
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.plan import Plan

TARGETS: Mapping[str, Callable[[Plan, ClusterSpec], Exported]] = {
    "megatron": export_megatron,
    "torchtitan": export_torchtitan,
    "deepspeed": export_deepspeed,
}


def export_plan(plan: Plan, target: str, cluster: ClusterSpec) -> Exported:
    """The plan as a file of another program, which asks that program for the same run.

    Args:
        plan: what is to run.
        target: "megatron", "torchtitan" or "deepspeed".
        cluster: what it runs on: how many processes a node starts.

    Raises ExportError listing every choice that the target has no words for, UnknownNameError for another target,
    PlanError where the cluster has not the plan's number of devices.
    """
    if target not in TARGETS:
        raise UnknownNameError("export format", target, TARGETS)
    if cluster.num_devices != plan.num_devices:
        raise PlanError(
            f"the plan is for {plan.num_devices} devices, {cluster.name} has {cluster.num_devices}",
            allowed="a cluster of the plan's size",
            next="give --cluster",
        )
    return TARGETS[target](plan, cluster)
