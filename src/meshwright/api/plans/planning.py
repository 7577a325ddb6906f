"""`plan`: the fastest plans of a model on a cluster that fit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from meshwright import catalog
from meshwright.api.plans.request import RISK, PlanRequest, capacity_of
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.option import takes
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

if TYPE_CHECKING:
    from meshwright.api.plans.like import PlansLike
    from meshwright.planner.search.plans import Plans
    from meshwright.schedules.order import Schedule

OWN_PLANNER = "search"
LEAST_LIMIT_S = 1e-6  # of a search behind others that took all the time: one plan is always simulated
OF_OTHERS = "--fix, --forbid, --objective, --max-memory, --extrapolate"
# What only our search can be told -> how the command says it.
OF_OUR_SEARCH: Mapping[str, str] = {
    "time_limit_s": "--time-limit",
    "layer_wise": "--layer-wise",
    "risk": "--risk",
    "framework": "--for",
    "microbatch_sizes": "microbatch_sizes",
    "num_simulated": "num_simulated",
    "iterations": "iterations",
}
SAID = (
    "global_batch",
    "seq",
    "lengths",
    "fix",
    "dtype",
    "forbid",
    "objective",
    "planner",
    "profile",
    "risk",
    "framework",
)  # all else are limits
HALF_FORMATS = ("bfloat16", "float16")  # of mixed-precision training, the first that a device has


ModelLike = str | ModelSpec | Mapping[str, Any] | os.PathLike[str]


@overload
def plan(
    model: ModelLike | None = None, cluster: str | ClusterSpec | None = None, *, like: None = None, **request: Any
) -> Plans: ...  # fmt: skip
@overload
def plan(
    model: ModelLike | None = None,
    cluster: str | ClusterSpec | None = None,
    *,
    like: Plan | str | os.PathLike[str],
    **request: Any,
) -> PlansLike: ...
@takes(PlanRequest)
def plan(
    model: ModelLike | None = None,
    cluster: str | ClusterSpec | None = None,
    *,
    like: Plan | str | os.PathLike[str] | None = None,
    format: str = "",
    variables: Mapping[str, str] | None = None,
    vocab: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **request: Any,
) -> Plans | PlansLike:
    """The fastest plans that fit: on GPUs the best of the closed form, simulated; on processes all, simulated.

    Args:
        model, cluster: as `Model` and `Cluster` take them. With `like` it says what is left out of these and of the job.
        like: what is run today: a plan, or a file; what is found is then as of `plan_like`.
        format: of that file: "megatron", "torchtitan" or "deepspeed"; empty: a plan of our own.
        variables: values of a script's own variables that are set outside it.
        vocab: tokens of its tokenizer, where only that tokenizer's files say it.
        progress: called with a plan in words and the share that is done, 0 to 1.
        request: the fields of `PlanRequest`: global_batch, seq, fix, forbid, objective, max_memory_bytes, ...

    Raises PlanError where there is no plan or the devices were never measured, OutOfMemoryError where none fits.
    """
    from meshwright.api.subjects.lengths import with_lengths
    from meshwright.api.subjects.loading import cluster_named

    asked = PlanRequest.of(request)
    if like is not None:
        from meshwright.api.plans.like import plan_like

        check_own_planner(asked.planner, "--like")
        if asked.framework is not None:
            raise PlanError(
                "--for with --like",
                allowed="--like alone, whose program it is for",
                next="leave it out",
            )
        if asked.lengths is not None:
            raise PlanError(
                "--lengths with --like, whose steps are of full sequences",
                allowed="--lengths with a model, a cluster, a batch and a sequence",
                next="leave one of them out",
            )
        return plan_like(
            like, format, model=model, cluster=cluster, variables=variables, vocab=vocab, progress=progress,
            fix=asked.decided, forbid=asked.forbidden,
            **asked.keywords("fix", "forbid", "dtype", "planner", "framework"),
        )  # fmt: skip
    if model is None or cluster is None or asked.global_batch is None or asked.seq is None:
        raise PlanError(
            "a plan needs model, cluster, global_batch and seq", allowed="those four, or like=FILE"
        )
    work = Workload(asked.global_batch, asked.seq)
    if asked.lengths is not None:
        work = with_lengths(work, asked.lengths)
    return _searched(load_model(model), cluster_named(cluster), work, asked, progress)


def _searched(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, asked: PlanRequest,
    progress: Callable[[str, float], None] | None,
) -> Plans:  # fmt: skip
    from meshwright.api.plans.measured_steps import MeasuredSteps
    from meshwright.api.plans.sayable import searched_for
    from meshwright.api.plans.slots import planned_by, searched_with_slots
    from meshwright.costs.measured.calibrated_cluster import calibrated_cluster
    from meshwright.planner.search.objective import Objective, check_rates, objective_named
    from meshwright.planner.search.plans import simplest_first
    from meshwright.planner.search.search import search

    begun = time.perf_counter()
    profile = Profile.load(asked.profile) if isinstance(asked.profile, Path) else asked.profile
    measured = MeasuredSteps(profile, cluster)
    cluster = calibrated_cluster(cluster, profile)
    objective = objective_named(asked.objective or Objective.TIME)
    check_rates(objective, cluster)
    # on one cluster money and energy rank as time does
    ranked_by = objective if objective is Objective.MEMORY else Objective.TIME
    fixed, assumptions = with_formats(cluster, asked.decided)
    if workload.sequence_length > model.max_sequence_length:
        assumptions += (f"{model.name} was made for {model.max_sequence_length} tokens",)
    if not cluster.is_homogeneous:
        assumptions += cluster.assumptions
    capacity = capacity_of(cluster, asked.max_memory_bytes)
    risk = RISK if asked.risk is None else asked.risk
    told = {"profile": profile, "extrapolate": asked.extrapolate, "objective": ranked_by}
    if asked.planner not in (None, OWN_PLANNER):
        limits = [said for name, said in OF_OUR_SEARCH.items() if getattr(asked, name)]
        check_own_planner(asked.planner if limits else None, " and ".join(limits))
        planned = planned_by(
            asked.planner, model, cluster, workload, fixed, asked.forbidden, capacity, **told
        )
        return measured.of_plans(planned)

    def own(chosen: ModelSpec, known: Mapping[str, Any]) -> Plans:
        limits = asked.keywords(*SAID)
        if asked.time_limit_s is not None and asked.framework is not None:  # several searches
            left_s = asked.time_limit_s - (time.perf_counter() - begun)
            limits["time_limit_s"] = max(0.5 * left_s, LEAST_LIMIT_S)
        return search(
            chosen, cluster, workload, fix=known, forbid=asked.forbidden, assumptions=assumptions,
            schedules=known_schedules(known), objective=ranked_by, profile=profile, progress=progress, risk=risk, **limits,
        )  # fmt: skip

    def whole(known: Mapping[str, Any]) -> Plans:
        return searched_with_slots(own, model, cluster, known, capacity, risk, **told)

    if asked.framework is None:
        found = whole(fixed)
    else:
        found = searched_for(asked.framework, whole, (model, cluster, workload), fixed, capacity, risk)
    if ranked_by is Objective.MEMORY:
        return measured.of_plans(found)
    return simplest_first(measured.ranked(found, capacity, risk), capacity, risk)


def check_own_planner(planner: str | None, asked: str) -> None:
    """Raise PlanError where another planner is asked for what only our search does."""
    if planner not in (None, OWN_PLANNER):
        raise PlanError(
            f"{asked} with --planner {planner}",
            allowed=f"with another planner {OF_OTHERS}",
            next=f"leave out --planner {planner} or {asked}",
        )


def known_schedules(fix: Mapping[str, Any]) -> dict[str, Schedule]:
    """All schedules that are known by a name, and those of what is fixed, which may be of the user's own file."""
    wanted = fix.get("schedule", ())
    given = [wanted] if isinstance(wanted, str) else wanted
    return {name: catalog.find_schedule(name) for name in (*catalog.names("schedules"), *given)}


def with_formats(cluster: ClusterSpec, fix: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What is fixed, with the usual number formats of GPUs where nobody chose one, and the sentence that says so."""
    if "dtype" in fix or cluster.machine.is_here:
        return fix, ()
    device = cluster.devices[0]
    half = next((dtype for dtype in HALF_FORMATS if dtype in device.flops_per_s), None)
    if half is None:
        return fix, ()
    line = f"{half} computes, float32 master parameters and gradients: nobody chose a dtype"
    return {"dtype": half, "master_dtype": "float32", "reduction_dtype": "float32", **fix}, (line,)
