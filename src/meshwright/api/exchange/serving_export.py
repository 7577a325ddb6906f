"""A plan that serves in a server's words: from its file to what exporters see."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

from meshwright.api.subjects.loading import cluster_named
from meshwright.interop.exported import Exported
from meshwright.interop.serving.export import export_serving
from meshwright.interop.serving.serving_job import ServingJob
from meshwright.serving.fleet.saved_serving import SavedServing
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.config.source import load_model, preset_model
from meshwright.specs.error import PlanError


def export_served(
    path: str | os.PathLike[str], format: str, cluster: str | ClusterSpec | None = None
) -> Exported:
    """The file's plan in a server's words; see `export_plan`."""
    saved = SavedServing.load(path)
    where = cluster_named(cluster or saved.cluster)
    if where.num_devices < saved.plan.num_devices:
        raise PlanError(
            f"the plan is for {saved.plan.num_devices} devices, {where.name} has {where.num_devices}",
            allowed="a cluster of at least the plan's size", next="give --cluster",
        )  # fmt: skip
    return export_serving(job_of(saved, where), format)


def job_of(saved: SavedServing, cluster: ClusterSpec) -> ServingJob:
    """What exporters see of it. A field that they do not know is told beside, where it is not as usual."""
    plan, layout = saved.plan, saved.plan.layout
    known = {each.name for each in fields(ServingJob)}
    others = [
        (each.name, str(getattr(plan, each.name)))
        for each in fields(ServingPlan)
        if each.name not in known | {"layout"} and getattr(plan, each.name) != each.default
    ]
    return ServingJob(
        model=saved.model,
        is_preset=not Path(saved.model).is_dir() and preset_model(saved.model) is not None,
        gpu=cluster.devices[0].name,
        num_gpus=min(cluster.levels[0].num_devices, cluster.num_devices),
        dtype=saved.dtype,
        max_model_tokens=load_model(saved.model).max_sequence_length,
        tp=layout.tp, pp=layout.pp, ep=layout.ep, attention_dp=layout.attention_dp,
        replicas=plan.replicas, num_prefill=plan.num_prefill, max_batch_tokens=plan.max_batch_tokens,
        max_sequences=plan.max_sequences, block_tokens=plan.block_tokens, router=plan.router, weights=plan.weights,
        usual_weights=ServingPlan.weights, others=tuple(others),
    )  # fmt: skip
