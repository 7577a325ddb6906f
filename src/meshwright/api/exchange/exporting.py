"""`export_plan`: a plan in another program's words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from meshwright.api.subjects.loading import cluster_named
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan

if TYPE_CHECKING:
    from meshwright.interop.exported import Exported


def export_plan(
    plan: Plan | str | os.PathLike[str], format: str, *, cluster: str | ClusterSpec | None = None
) -> Exported:
    """A plan as the file with which another program does the same run, or serves the same way.

    Args:
        plan: a plan or its file.
        format: "megatron" (a shell script), "torchtitan" (TOML), "deepspeed" (JSON); or the job that trains it with
            meshwright: "slurm", "torchrun" (scripts), "k8s" (YAML). Of the file of a plan that serves: "vllm", "sglang",
            "meshwright" (scripts), "k8s", "ray-serve" (YAML).
        cluster: what it runs on, which says how many processes a node starts; None: the cluster that the plan names.

    Raises ExportError (a PlanError) listing every choice that the format has no words for, UnknownNameError for another
    format or cluster, PlanError for a file that is no plan.
    """
    from meshwright.interop.export import export_plan as export
    from meshwright.serving.fleet.saved_serving import is_serving_plan

    if not isinstance(plan, Plan) and is_serving_plan(plan):
        from meshwright.api.exchange.serving_export import export_served

        return export_served(plan, format, cluster)
    chosen = plan if isinstance(plan, Plan) else Plan.load(plan)
    return export(chosen, format, cluster_named(cluster or chosen.cluster))
