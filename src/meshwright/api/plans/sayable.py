"""Plans that another program can be told: which programs those are, and a search for the fastest plan that one can say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.api.plans.todays_choices import choices_within
from meshwright.interop.export import TARGETS
from meshwright.interop.exported import ExportError, Refusal
from meshwright.interop.target_limits import regions
from meshwright.planner.search.plans import PassedOver, Plans, safe_first
from meshwright.planner.search.variation.beside_experts import beside_experts
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

Search = Callable[[Mapping[str, Any]], Plans]


def frameworks(plan: Plan, cluster: ClusterSpec) -> tuple[str, ...]:
    """The programs that can be told this plan; none of processes of this machine, which only we run."""
    if cluster.machine.is_here:
        return ()
    return tuple(name for name in TARGETS if not refusals(plan, name, cluster))


def refusals(plan: Plan, target: str, cluster: ClusterSpec) -> tuple[Refusal, ...]:
    """What a program has no words for in a plan."""
    try:
        TARGETS[target](plan, cluster)
    except ExportError as error:
        return error.refusals
    return ()


def searched_for(
    target: str, search: Search, job: tuple[ModelSpec, ClusterSpec, Workload], fix: Mapping[str, Any], capacity: int,
    risk: float,
) -> Plans:  # fmt: skip
    """The best plans that a program can be told: what `search` finds in each region that it has words for. The faster plan
    that it cannot be told is in `passed_over`. Where it can send tokens beside another microbatch's experts, the best are
    tried so, too, unless an overlap is fixed.

    Args:
        search: from what is fixed to plans.
        capacity, risk: by which those that may not fit stand last.

    Raises UnknownNameError, PlanError where no plan can be told, OutOfMemoryError where none of those fits.
    """
    if target not in TARGETS:
        raise UnknownNameError("framework", target, TARGETS)
    if job[1].machine.is_here:
        raise PlanError(
            f"--for {target} on {job[1].name}, whose processes only meshwright runs",
            allowed="a cluster of GPUs",
            next="leave it out",
        )
    parts = regions(target, Plan.of(*job, dp=1, num_devices=1, overlap=fix.get("overlap", ())))
    found, errors = list[Plans](), list[MeshwrightError]()
    for part in choices_within(parts, fix, target, "plan without --for"):
        try:
            found.append(search(part))
        except (PlanError, OutOfMemoryError) as error:
            errors.append(error)
    if not found:
        raise next((each for each in errors if isinstance(each, OutOfMemoryError)), errors[0])
    every = sorted((each for plans in found for each in plans), key=lambda each: each.step.value)
    if "overlap" not in fix:
        more = _beside_experts(every, target, job[1], capacity)
        every = sorted((*every, *more), key=lambda each: each.step.value)
    told = [(each, refusals(each.plan, target, job[1])) for each in every]
    plans = safe_first([each for each, why in told if not why], capacity, risk)
    if not plans:
        raise ExportError(target, told[0][1])
    whole = search(fix)
    beyond = [(each, refusals(each.plan, target, job[1])) for each in whole]
    return replace(
        max([*found, whole], key=lambda each: each.num_candidates),
        plans=tuple(plans), num_simulated=len(plans), search_s=sum(each.search_s for each in (*found, whole)),
        simulation_s=sum(each.simulation_s for each in (*found, whole)),
        is_complete=all(each.is_complete for each in (*found, whole)),
        optimality_gap=None,  # a bound of one search says nothing of what the program can say
        passed_over=(*_risky(found, plans[0]), *_untold(target, beyond, plans[0])),
    )  # fmt: skip


def _beside_experts(
    ranked: Sequence[Predicted], target: str, cluster: ClusterSpec, capacity: int
) -> list[Predicted]:
    """The best plans with all-to-alls beside another microbatch's experts that the program can be told, and that fit."""
    known = {each.plan for each in ranked}
    told = [
        plan for plan in beside_experts(ranked) if plan not in known and not refusals(plan, target, cluster)
    ]
    found = [predict(plan, cluster, extrapolate=True) for plan in told]
    return [each for each in found if each.rejected(capacity) is None]


def _risky(found: Sequence[Plans], first: Predicted) -> list[PassedOver]:
    """The fastest plan that can be told and may not fit."""
    every = [each for plans in found for each in plans.passed_over if each.plan.step.value < first.step.value]
    return sorted(every, key=lambda each: each.plan.step.value)[:1]


def _untold(
    target: str, beyond: Sequence[tuple[Predicted, Sequence[Refusal]]], first: Predicted
) -> list[PassedOver]:
    """The first plan of all, where it is faster and cannot be told."""
    for each, why in beyond[:1]:
        if why and each.step.value < first.step.value:
            reasons = "; ".join(f"{one.choice}: {one.reason}" for one in why)
            return [PassedOver(each, f"{target} cannot be told it: {reasons}")]
    return []
