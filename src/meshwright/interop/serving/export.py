"""A plan that serves as a file of another program."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.interop.exported import Exported
from meshwright.interop.serving.command import export_meshwright, export_sglang, export_vllm
from meshwright.interop.serving.manifest import export_kubernetes, export_ray
from meshwright.interop.serving.serving_job import ServingJob
from meshwright.specs.error import UnknownNameError

SERVERS: Mapping[str, Callable[[ServingJob], Exported]] = {
    "vllm": export_vllm,
    "sglang": export_sglang,
    "meshwright": export_meshwright,
    "k8s": export_kubernetes,
    "ray-serve": export_ray,
}


def export_serving(job: ServingJob, target: str) -> Exported:
    """The plan as a file of "vllm", "sglang", "meshwright" (scripts), "k8s" or "ray-serve" (YAML).

    Raises ExportError listing every choice that the target has no words for, UnknownNameError for another target.
    """
    if target not in SERVERS:
        raise UnknownNameError("export format of a plan that serves", target, SERVERS)
    return SERVERS[target](job)
