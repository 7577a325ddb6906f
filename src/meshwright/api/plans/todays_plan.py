"""`todays_plan`: what a job runs today, read from its file, and every contradiction with what the user says beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.api.exchange.importing import import_plan
from meshwright.api.subjects.loading import cluster_named
from meshwright.interop import FORMATS, Given
from meshwright.interop.imported import Imported, Option
from meshwright.interop.plan_difference import written_options
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

PathLike = str | os.PathLike[str]
ModelLike = str | ModelSpec | Mapping[str, Any] | PathLike
# What two descriptions of a model must agree on; constants of norms and positions change no step.
SIZES = (
    *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "num_experts"),
    *("num_experts_per_token", "expert_intermediate_size"),
)  # fmt: skip
# Flags of the import -> what says it to `plan`.
FLAGS: Mapping[str, str] = {
    "--model NAME or --model config.json": "MODEL before CLUSTER (a name or config.json)",
    "--model NAME|config.json": "MODEL before CLUSTER (a name or config.json)",
    "--model config.json": "MODEL before CLUSTER (a config.json)",
    "--gpus or --cluster": "CLUSTER",
    "--cluster NODESxDEVICESxKIND": "CLUSTER as NODESxDEVICESxKIND",
    "--cluster": "CLUSTER",
    "--gpus": "CLUSTER as NODESxDEVICESxKIND",
    "add --micro-batch": "write it into the file",
}


@dataclass(frozen=True, eq=False)
class Todays:
    """Today's plan on its cluster.

    Attributes:
        target: "megatron", "torchtitan" or "deepspeed"; empty for a plan of our own.
        where: the file, for messages.
        written: the options of the file that decided something; empty for a plan of our own.
        unknown: options that were not understood, as they are written, with the reason.
        assumptions: what the file left open.
        text: the file; empty for a plan of our own.
        reader: the plan that another text of that format says, read as the file was.
    """

    plan: Plan
    cluster: ClusterSpec
    target: str
    where: str
    written: tuple[Option, ...] = ()
    unknown: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    text: str = ""
    reader: Callable[[str], Plan] | None = None

    def read(self, text: str) -> Plan:
        """The plan that another text of the file's format says. Raises PlanError as an import does."""
        if self.reader is None:
            raise PlanError(f"{self.where} is no file of another program", allowed="one that --from names")
        return self.reader(text)


def todays_plan(
    like: Plan | PathLike,
    format: str,
    model: ModelLike | None,
    cluster: str | ClusterSpec | None,
    global_batch: int | None,
    seq: int | None,
    variables: Mapping[str, str] | None,
    vocab: int | None = None,
) -> Todays:
    """The plan of a file, or the plan itself. Raises PlanError where a fact is missing or contradicts the file."""
    if isinstance(like, Plan) or not format:
        return _own(like, format, model, cluster, {"global_batch": global_batch, "sequence_length": seq})
    text = _cluster_text(cluster)
    if not text:
        raise PlanError(
            f"{like} does not say what the job runs on",
            allowed="a cluster such as 8x8xH100, or a device such as H100 (the file says how many)",
            next=f"name it: meshwright plan H100 --like {like} --from {format}",
        )
    given: dict[str, Any] = {
        "cluster": text, "global_batch": global_batch, "seq": seq, "variables": variables, "vocab": vocab,
    }  # fmt: skip
    found = _read(like, format, model, given)
    _check_model(found.plan, model, str(like))
    if found.replaced:
        raise PlanError(
            "; ".join(found.replaced),
            allowed="what the file says, or nothing where it says it",
            next="leave it out, or change the file to what you want to run",
        )
    plan, spec = found.plan, cluster_of_job(cluster, found.plan)
    if spec.name != plan.cluster:
        plan = plan.changed(cluster=spec.name)
    unknown = tuple(f"{each.name} {each.value}: {each.meaning}" for each in found.unknown)
    whole = Path(like).expanduser().read_text(encoding="utf-8")

    def reader(other: str) -> Plan:
        with_model = Given(plan.model, text, None, seq, global_batch, None, vocab, variables or {})
        return FORMATS[format](other, str(like), with_model).plan.changed(cluster=spec.name)

    written = written_options(found, whole)
    return Todays(plan, spec, format, str(like), written, unknown, found.assumptions, whole, reader)


def _own(
    like: Plan | PathLike, format: str, model: ModelLike | None, cluster: str | ClusterSpec | None,
    workload: Mapping[str, int | None],
) -> Todays:  # fmt: skip
    """A plan of our own, which says everything."""
    plan = like if isinstance(like, Plan) else Plan.load(like)
    where = "the plan" if isinstance(like, Plan) else str(like)
    spec = cluster_named(cluster or plan.cluster)
    _check_model(plan, model, where)
    for name, value in workload.items():
        _agree(where, name, value, getattr(plan.workload, name))
    _agree(where, "number of devices", spec.num_devices, plan.num_devices)
    return Todays(plan, spec, format, where)


def _read(like: PathLike, format: str, model: ModelLike | None, given: Mapping[str, Any]) -> Imported:
    """The file; with the user's model only where the file names none that is known."""
    try:
        return import_plan(like, format, **given)
    except (PlanError, UnknownNameError) as error:
        if model is None:
            raise _as_here(error) from None
    try:
        return import_plan(like, format, model=load_model(model), **given)
    except (PlanError, UnknownNameError) as error:
        raise _as_here(error) from None


def _as_here(error: PlanError | UnknownNameError) -> PlanError | UnknownNameError:
    """The error of an import with what `plan` calls its flags."""
    step = error.next
    for flag, here in FLAGS.items():
        step = step.replace(flag, here)
    return error if step == error.next else PlanError(error.given, allowed=error.allowed, next=step)


def _check_model(plan: Plan, given: ModelLike | None, where: str) -> None:
    if given is None:
        return
    model = load_model(given)
    for name in SIZES:
        _agree(where, f"{name} of {model.name}", model.dimensions()[name], plan.model.dimensions()[name])


def _agree(where: str, name: str, given: int | None, said: int) -> None:
    """Raise PlanError where the user gave another number than the file says."""
    if given not in (None, said):
        raise PlanError(
            f"{name} is {given}, {where} says {said}",
            allowed="what the file says, or nothing",
            next="leave it out, or change the file to what you want to run",
        )


def _cluster_text(cluster: str | ClusterSpec | None) -> str:
    """A short name that the import understands."""
    if not isinstance(cluster, ClusterSpec):
        return cluster or ""
    each = min(cluster.levels[0].num_devices, cluster.num_devices)
    return f"{cluster.num_devices // each}x{each}x{cluster.devices[0].name}"


def cluster_of_job(given: str | ClusterSpec | None, plan: Plan) -> ClusterSpec:
    """What the user named, as large as the job: a kind of device alone does not say how many there are."""
    if isinstance(given, ClusterSpec):
        return given
    named = cluster_named(given or plan.cluster)
    return named if named.num_devices == plan.num_devices else cluster_named(plan.cluster)
