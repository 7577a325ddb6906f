"""Plans in other programs' words (Megatron-LM, torchtitan, DeepSpeed), and jobs of our own (Slurm, torchrun, Kubernetes)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.interop.deepspeed.export import export_deepspeed
from meshwright.interop.exported import Exported
from meshwright.interop.launch.export import export_kubernetes, export_slurm, export_torchrun
from meshwright.interop.megatron.export import export_megatron
from meshwright.interop.torchtitan.export import export_torchtitan
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.plan.plan import Plan

TARGETS: Mapping[str, Callable[[Plan, ClusterSpec], Exported]] = {
    "megatron": export_megatron,
    "torchtitan": export_torchtitan,
    "deepspeed": export_deepspeed,
}
# what starts `meshwright train` on several hosts
LAUNCHERS: Mapping[str, Callable[[Plan, ClusterSpec], Exported]] = {
    "slurm": export_slurm,
    "torchrun": export_torchrun,
    "k8s": export_kubernetes,
}


def export_plan(plan: Plan, target: str, cluster: ClusterSpec) -> Exported:
    """The plan as a file of another program, which asks that program for the same run.

    Args:
        plan: what is to run.
        target: "megatron", "torchtitan", "deepspeed"; or "slurm", "torchrun", "k8s" for a job that trains it here.
        cluster: what it runs on: how many processes a node starts.

    Raises ExportError listing every choice that the target has no words for, UnknownNameError for another target,
    PlanError where the cluster has not the plan's number of devices.
    """
    known = {**TARGETS, **LAUNCHERS}
    if target not in known:
        raise UnknownNameError("export format", target, known)
    if cluster.num_devices != plan.num_devices:
        raise PlanError(
            f"the plan is for {plan.num_devices} devices, {cluster.name} has {cluster.num_devices}",
            allowed="a cluster of the plan's size",
            next="give --cluster",
        )
    return known[target](plan, cluster)
