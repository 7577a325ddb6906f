"""`solve` for a number of a job, and `pareto`: the plans that no other beats in both step and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.api.plans.measured_steps import MeasuredSteps
from meshwright.api.plans.planning import ModelLike, check_own_planner, with_formats
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.plan.workload import Workload

if TYPE_CHECKING:
    from meshwright.planner.advice.goodput import Failures
    from meshwright.planner.search.plans import Plans
    from meshwright.planner.search.solve import Solution

SOLVED = ("seq", "microbatch", "gpus")


def solve(
    model: ModelLike,
    cluster: str | ClusterSpec,
    what: str,
    *,
    global_batch: int,
    seq: int | None = None,
    num_tokens: int | None = None,
    deadline_s: float | None = None,
    failures: Failures | None = None,
    max_devices: int | None = None,
    fix: Mapping[str, Any] | None = None,
    **options: Any,
) -> Solution:
    """The longest sequence, the largest microbatch, or the fewest devices for which some plan does it.

    Args:
        what: "seq" (of this batch, on this cluster), "microbatch" (with what is fixed) or "gpus" (whole nodes of the
            cluster's kind that read `num_tokens` by `deadline_s`, failures included where they are given; without these,
            on which some plan fits).
        seq: tokens of a sequence; not for "seq".
        max_devices: with "gpus", none above is tried.
        fix, options: as of `plan` on GPUs, besides its objective and time limit for "gpus".

    Raises PlanError for what does not go together or cannot be, OutOfMemoryError where nothing fits, DeadlineError (a
    PlanError) where no number of devices is in time.
    """
    from meshwright.planner.search.deadline import MOST_DEVICES, fewest_devices, smallest_fitting
    from meshwright.planner.search.solve import largest_microbatch, longest_sequence

    if what not in SOLVED:
        raise UnknownNameError("number to solve for", what, SOLVED)
    check_own_planner(options.pop("planner", None), f"--solve {what}")
    spec, fixed = _prepared(cluster, fix, options)
    chosen = load_model(model)
    steps = _measured_steps(spec, what, deadline_s, options)
    if (what == "seq") != (seq is None):
        given = "without a sequence" if seq is None else f"with a sequence of {seq}"
        raise PlanError(
            f"solving for {what} {given}",
            allowed="a sequence, except for seq itself",
            next="give seq" if seq is None else "leave seq out",
        )
    length = 0 if seq is None else seq
    if what == "gpus":
        if spec.machine.is_here:
            raise PlanError(
                f"solving for the devices of {spec.name}, which are processes of this machine",
                allowed="a cluster that grows by nodes, such as 8xH100",
                next="solve for seq or microbatch, or plan for more processes",
            )
        if deadline_s is None:
            fitting = smallest_fitting(
                chosen, spec, Workload(global_batch, length), max_devices=max_devices or MOST_DEVICES, fix=fixed, **options
            )  # fmt: skip
            return steps.of_solution(fitting)
        if num_tokens is None:
            raise PlanError("a deadline", allowed="it with a budget: --deadline 30d --tokens 2T")
        return fewest_devices(
            chosen, spec, Workload(global_batch, length), num_tokens=num_tokens, deadline_s=deadline_s,
            failures=failures, max_devices=max_devices or MOST_DEVICES, fix=fixed, **options,
        )  # fmt: skip
    if deadline_s is not None or max_devices is not None:
        raise PlanError(f"a deadline or most devices with solving for {what}", allowed="them with gpus")
    if what == "seq":
        return steps.of_solution(longest_sequence(chosen, spec, global_batch, fix=fixed, **options))
    return steps.of_solution(
        largest_microbatch(chosen, spec, Workload(global_batch, length), fix=fixed, **options)
    )


def _measured_steps(
    cluster: ClusterSpec, what: str, deadline_s: float | None, options: dict[str, Any]
) -> MeasuredSteps:
    """What a log says of the steps, taken out of the options where they are of GPUs. Raises PlanError with a deadline, whose
    search compares steps as they are predicted."""
    steps = MeasuredSteps(options.get("profile"), cluster)
    if not cluster.machine.is_here:
        options.pop("profile", None)
    if steps.said and deadline_s is not None:
        raise PlanError(
            f"--solve {what} --deadline with a profile of a log",
            allowed="a profile for plans, and for numbers that are solved for by what fits",
            next="leave --profile out, and plan with it on as many GPUs as are found",
        )
    return steps


def pareto(
    model: ModelLike,
    cluster: str | ClusterSpec,
    *,
    global_batch: int,
    seq: int,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    **options: Any,
) -> Plans:
    """The plans that no other equals or beats in both step and peak memory, the fastest first.

    Args: as of `plan` on GPUs; options: those of `planner.pareto.frontier`.

    Raises PlanError and OutOfMemoryError as `plan`.
    """
    from meshwright.planner.search.pareto import frontier

    check_own_planner(options.pop("planner", None), "--pareto")
    spec, fixed = _prepared(cluster, fix, options)
    work, steps = Workload(global_batch, seq), _measured_steps(spec, "", None, options)
    return steps.frontier(frontier(load_model(model), spec, work, fix=fixed, forbid=forbid, **options))


def _prepared(
    cluster: str | ClusterSpec, fix: Mapping[str, Any] | None, options: dict[str, Any]
) -> tuple[ClusterSpec, Mapping[str, Any]]:
    """The cluster, and what is fixed with the usual formats; these are written into the assumptions of `options`."""
    from meshwright.api.subjects.loading import cluster_named
    from meshwright.costs.measured.calibrated_cluster import calibrated_cluster

    spec = calibrated_cluster(cluster_named(cluster), options.get("profile"))
    fixed, assumptions = with_formats(spec, fix or {})
    options["assumptions"] = (*options.get("assumptions", ()), *assumptions)
    return spec, fixed
