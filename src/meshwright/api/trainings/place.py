"""Where a plan is trained: on this machine's GPUs where it is for these and they are there, else on its cores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.api.subjects.subject import Subject, cluster_of, plan_subject, subject
from meshwright.executor.capability import check_plan
from meshwright.ir.program import Program
from meshwright.lowering.lower import lower
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.stage.piece import as_executed, executed_pieces

logger = logging.getLogger(__name__)
Wanted = Literal["auto", "cpu", "cuda"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, eq=False)
class TrainingPlace:
    """What is trained, as it is predicted, and on which devices; ``program`` is what the ranks do."""

    subject: Subject
    device: Device
    program: Program

    @property
    def plan(self) -> Plan:
        """What is trained, as it runs there."""
        return _plan_of(self.subject)

    def whole_stages(self) -> Program:
        """The program of stages that are run as they are, and exchange inside: of modules whose parts are not known."""
        assert self.subject.predicted is not None, "a plan is predicted before it is trained"
        schedule = self.subject.predicted.schedule
        return lower(as_executed(self.plan), schedule, pieces=executed_pieces(self.plan))


def place_of(
    what: Plan | Subject,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    device: Wanted = "auto",
    num_local: int | None = None,
) -> TrainingPlace:
    """Choose where a plan is trained, and make its program for there.

    Args:
        what: the plan, or what was made of it.
        cluster: where the plan runs, if not the cluster that it names.
        profile: of processes on this machine's cores.
        device: "cuda": GPUs, or an error; "cpu": processes; "auto": GPUs for a plan that is for GPUs, where there are enough.
        num_local: GPUs that this process has to see; None: one for each rank of the plan, all of which are its own.

    Raises:
        SpecError: `device` is none of these, or "cuda" for a plan of processes.
        ExecutionError: "cuda" without as many GPUs, or PyTorch without NCCL.
    """
    if device not in get_args(Wanted):
        raise SpecError(f"a training on {device!r}", allowed=", ".join(get_args(Wanted)))
    plan = _plan_of(what)
    where = cluster_of(plan, cluster)
    if where.machine.is_here:
        if device == "cuda":
            raise SpecError(
                f"a plan for {where.name} on GPUs",
                allowed="auto or cpu",
                next="plan for the GPUs: `meshwright plan MODEL 1xH100 --global-batch N --seq N -o plan.toml`",
            )
        made = what if isinstance(what, Subject) else subject(plan, cluster=cluster, profile=profile)
        return TrainingPlace(made, "cpu", made.program)
    if device != "cpu":
        missing = _missing(plan.num_devices if num_local is None else num_local, where)
        if not missing:
            return _on_gpus(plan, where)
        if device == "cuda":
            raise ExecutionError(
                f"{plan.num_devices} ranks on GPUs: {missing}",
                allowed="as many CUDA devices as the plan has ranks on this machine",
                next="--device cpu trains on processes of this machine's cores",
            )
    made = plan_subject(plan, Cluster.detect(plan.num_devices), profile)
    return TrainingPlace(made, "cpu", made.program)


def _plan_of(what: Plan | Subject) -> Plan:
    """The plan of what was given. Raises SpecError where it has none."""
    if isinstance(what, Plan):
        return what
    if what.plan is None:
        raise SpecError(f"{what.label} is no plan", allowed="a plan: it says model, batch and degrees")
    return what.plan


def _missing(num_ranks: int, cluster: ClusterSpec) -> str:
    """What this machine lacks for so many ranks on GPUs; empty: nothing. Warns where its GPUs are of another kind."""
    from meshwright.executor.job.environment import torch_facts

    facts = torch_facts()
    if facts.problem:
        return facts.problem
    if len(facts.devices) < num_ranks:
        return f"PyTorch {facts.version} sees {len(facts.devices)} here"
    if not facts.has_nccl:
        return f"PyTorch {facts.version} has no NCCL"
    _warn_of_others([name for name, _ in facts.devices[:num_ranks]], cluster)
    return ""


def _warn_of_others(names: Sequence[str], cluster: ClusterSpec) -> None:
    wanted = cluster.devices[0].name
    others = sorted({name for name in names if wanted.split("-")[0].lower() not in name.lower()})
    if others:
        logger.warning(
            "the plan is for %s, this machine has %s: the prediction is for the former", wanted, others[0]
        )


def _on_gpus(plan: Plan, cluster: ClusterSpec) -> TrainingPlace:
    """Priced as on its cluster under our own software; the ranks run its segments, each stage in one piece where they can."""
    check_plan(plan)
    run = as_executed(plan)
    made = plan_subject(run, cluster)
    assert made.predicted is not None, "what is made of a plan was predicted"
    schedule = made.predicted.schedule  # whose order may depend on where stages stand
    return TrainingPlace(made, "cuda", lower(run, schedule, pieces=executed_pieces(plan), in_segments=True))
