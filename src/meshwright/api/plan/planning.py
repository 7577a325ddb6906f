"""`plan`: the fastest plans of a model on a cluster that fit."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from meshwright import catalog
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

if TYPE_CHECKING:
    from meshwright.api.plan.like import PlansLike
    from meshwright.planner.search.plans import Plans
    from meshwright.schedules.order import Schedule

OWN_PLANNER = "search"
HALF_FORMATS = ("bfloat16", "float16")  # of mixed-precision training, the first that a device has


ModelLike = str | ModelSpec | Mapping[str, Any] | os.PathLike[str]


@overload
def plan(
    model: ModelLike | None = None, cluster: str | ClusterSpec | None = None, *, like: None = None, **options: Any
) -> Plans: ...  # fmt: skip
@overload
def plan(
    model: ModelLike | None = None,
    cluster: str | ClusterSpec | None = None,
    *,
    like: Plan | str | os.PathLike[str],
    **options: Any,
) -> PlansLike: ...
def plan(
    model: ModelLike | None = None,
    cluster: str | ClusterSpec | None = None,
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    like: Plan | str | os.PathLike[str] | None = None,
    format: str = "",
    fix: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    extrapolate: bool = False,
    microbatch_sizes: Sequence[int] | None = None,
    dtype: str | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Plans | PlansLike:
    """The fastest plans that fit: on GPUs the best of the closed form, simulated; on processes all, simulated.

    Args:
        model, cluster: as `Model` and `Cluster` take them.
        global_batch, seq: sequences of a step, and tokens of one. With `like` it says what is left out of these four.
        like: what is run today: a plan, or a file; what is found is then as of `plan_like`.
        format: of that file: "megatron", "torchtitan" or "deepspeed"; empty: a plan of our own.
        fix: fields of a plan that are decided already, such as {"pp": 4, "schedule": "1f1b"}. On GPUs a `dtype` that
            nobody chose is bfloat16, with master parameters and gradients in float32.
        profile: of this machine; None: the one in the user's cache.
        extrapolate: plan for GPUs that were never measured, too, by their data sheet.
        microbatch_sizes: sequences of a microbatch to try.
        dtype: the same as fixing it.
        progress: called with a plan in words and the share that is done, 0 to 1.
        options: `objective` ("time", "cost", "energy" or "memory", see `planner.search.objective`) and those of
            `planner` (a name of `meshwright list planners`) and those of
            `planner.search.search`: forbid, max_memory_bytes, num_simulated, time_limit_s, layer_wise, iterations.

    Raises PlanError where there is no plan or the devices were never measured, OutOfMemoryError where none fits.
    """
    from meshwright.api.subject.loading import cluster_named

    fixed = {**({} if dtype is None else {"dtype": dtype}), **_fields(fix)}
    if isinstance(options.get("forbid"), str):
        options["forbid"] = (options["forbid"],)
    if microbatch_sizes is not None:
        options["microbatch_sizes"] = microbatch_sizes
    if like is not None:
        from meshwright.api.plan.like import plan_like

        options |= {
            "global_batch": global_batch,
            "seq": seq,
            "extrapolate": extrapolate,
            "progress": progress,
        }
        return plan_like(like, format, model=model, cluster=cluster, fix=fixed, **options)
    if model is None or cluster is None or global_batch is None or seq is None:
        raise PlanError(
            "a plan needs model, cluster, global_batch and seq", allowed="those four, or like=FILE"
        )
    spec = cluster if isinstance(cluster, ClusterSpec) else cluster_named(cluster)
    chosen, work = load_model(model), Workload(global_batch, seq)
    return _searched(
        chosen, spec, work, fixed, profile, extrapolate=extrapolate, progress=progress, **options
    )


def _fields(fix: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What is fixed, with one kind of overlap as a tuple of it. Raises PlanError where it is no mapping."""
    if fix is not None and not isinstance(fix, Mapping):
        raise PlanError(f"fix is {fix!r}", allowed='names and values, such as {"tp": 8, "pp": 4}')
    found = dict(fix or {})
    if isinstance(found.get("overlap"), str):
        found["overlap"] = (found["overlap"],)
    return found


def _searched(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any], profile: Profile | None,
    **options: Any,
) -> Plans:  # fmt: skip
    from meshwright.api.plan.slots import planned_by, searched_with_slots
    from meshwright.costs.measured.calibrated_cluster import calibrated_cluster
    from meshwright.planner.search.objective import Objective, check_rates, objective_named
    from meshwright.planner.search.search import search

    cluster = calibrated_cluster(cluster, profile)
    objective = objective_named(options.pop("objective", Objective.TIME))
    check_rates(objective, cluster)
    if objective is Objective.MEMORY:  # on one cluster money and energy rank as time does
        options["objective"] = objective
    fixed, assumptions = with_formats(cluster, fix)
    if workload.sequence_length > model.max_sequence_length:
        assumptions += (f"{model.name} was made for {model.max_sequence_length} tokens",)
    if not cluster.is_homogeneous:
        assumptions += cluster.assumptions
    planner = options.pop("planner", OWN_PLANNER)
    unknown = sorted(set(options) - set(inspect.signature(search).parameters))
    if unknown:
        raise PlanError(
            f"a search has no {', '.join(unknown)}", allowed=", ".join(inspect.signature(search).parameters)
        )
    limit = options.get("max_memory_bytes")
    capacity = (
        min(cluster.memory_bytes, int(limit)) if isinstance(limit, int | float) else cluster.memory_bytes
    )
    told = {"profile": profile, "extrapolate": bool(options.get("extrapolate", False))}
    if planner != OWN_PLANNER:
        return planned_by(planner, model, cluster, workload, fixed, capacity, **told)

    def own(chosen: ModelSpec, known: Mapping[str, Any]) -> Plans:
        return search(
            chosen, cluster, workload, fix=known, assumptions=assumptions, schedules=known_schedules(known),
            profile=profile, **options,
        )  # fmt: skip

    return searched_with_slots(own, model, cluster, fixed, capacity, **told)


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
