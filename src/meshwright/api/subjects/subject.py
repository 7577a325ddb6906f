"""What a verb works on: a program made from whatever people have, with its costs and its place."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright import catalog
from meshwright.api.subjects.lengths import with_lengths
from meshwright.api.subjects.loading import PathLike, cluster_named, is_data_file, load
from meshwright.api.subjects.routing import with_capacity, with_routing
from meshwright.ir.program import Program
from meshwright.ir.trace import Trace
from meshwright.lowering.order import with_shares
from meshwright.schedules.order import Orders, Schedule, read_orders
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError, SpecError, UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.units import format_seconds

if TYPE_CHECKING:
    from meshwright.costs.cost import CommunicationModel, CostModel
    from meshwright.prediction.memory_estimate import MemoryEstimate
    from meshwright.prediction.predicted import Predicted

DEFAULT_STAGES, DEFAULT_MICROBATCHES = 4, 8  # of a schedule that is looked at without counts
REPLICAS = (
    2  # data-parallel copies with which `check` proves a bare schedule: reductions are part of the proof
)


@dataclass(frozen=True, eq=False)
class Subject:
    """What a verb works on: a program and, where they are known, what it costs and whence it came.

    ``counts`` (stages, microbatches, chunks) are those of a bare schedule. ``assumptions`` say what the times rest on.
    ``predicted``: of a plan, with what it will do; where it runs and what its step holds are asked of it.
    """

    label: str
    program: Program
    computes: CostModel | None = None
    messages: CommunicationModel | None = None
    host: str = "asynchronous"
    counts: Mapping[str, int] | None = None
    assumptions: tuple[str, ...] = ()
    predicted: Predicted | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan, where it is one."""
        return None if self.predicted is None else self.predicted.plan

    @property
    def cluster(self) -> ClusterSpec | None:
        """Where a plan runs."""
        return None if self.predicted is None else self.predicted.cluster

    @property
    def memory(self) -> MemoryEstimate | None:
        """What a plan holds on every device, where its machine is judged by the estimate."""
        return None if self.predicted is None else self.predicted.memory

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of the smallest device, where the devices are known."""
        return None if self.cluster is None else self.cluster.memory_bytes


def subject(
    what: Any = None,
    *,
    schedule: str | Schedule | None = None,
    stages: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    times: Sequence[float] | None = None,
    comm: float | None = None,
    split: bool = False,
    recompute: bool = False,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    with_step: bool = False,
    extrapolate: bool = False,
    segments: bool | None = None,
    lengths: PathLike | LengthDistribution | None = None,
    routing: PathLike | RoutingTrace | None = None,
    expert_placement: str = "",
    capacity_factor: float | None = None,
) -> Subject:
    """Turn what people have into a program with its costs.

    Args:
        what: a Plan or its file, a Program or its text, torch's schedule CSV, a schedule or its name, or a saved trace.
        schedule: a schedule by name, ``./mine.py:wave``, or a CSV file; the same as giving it as `what`.
        stages, microbatches, chunks: counts of a schedule: devices, microbatches, stages a device.
        times: seconds of F, I and W of a full stage (1, 1, 1); B = I + W, R = F, a chunk costs its share.
        comm: latency in seconds of a hop between different devices.
        split, recompute: apply these passes.
        cluster: where a plan runs, if not the cluster that it names.
        profile: what this machine was measured to take; None: the one in the user's cache, if there is one. Of a plan on GPUs
            what `calibrate --from-log` learned of runs on such.
        with_step: of a bare schedule, also the gradient reduction over two replicas and the optimizer step.
        extrapolate: price plans on devices that were never measured by their data sheet.
        segments: of a plan on GPUs, what it sends inside a stage as rows of the program, or a price composed of the stage's
            computes and these exchanges, one behind the other; None: rows wherever they say all of it. Processes run
            segments anyway.
        lengths: of the documents in a plan's sequences, as `plan` takes them, instead of what the plan says of them.
        routing, expert_placement: where tokens of a plan's model went, and where its experts stand: the busiest device of an
            expert-parallel group is priced, instead of balanced experts (`with_routing`).
        capacity_factor: of experts that take at most so many even shares of each sequence (`with_capacity`).

    Raises:
        UnknownNameError, SpecError, PlanError: what was given is not there or cannot be.
        ScheduleError: the schedule's order is none.
    """
    known, file = _read(what if schedule is None else schedule)
    given: Any = getattr(known, "plan", known)  # what was predicted carries its plan
    counts = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    if isinstance(given, Plan):
        _refuse("a plan says its own", **counts, times=times, comm=comm)
        changes: dict[str, Any] = {"recompute": "full"} if recompute else {}
        if lengths is not None:
            changes["workload"] = with_lengths(given.workload, lengths)
        if routing is not None:
            changes["workload"] = with_routing(given.changed(**changes), routing, expert_placement).workload
        if capacity_factor is not None:
            changes["workload"] = with_capacity(given.changed(**changes), capacity_factor).workload
        changed = given.changed(**changes, **({"split_backward": True} if split else {}))
        is_known = known is not given and changed == given and cluster is None and profile is None
        if is_known and segments in (None, known.level == "segments"):
            return predicted_subject(known.refined() if segments is None else known)
        return plan_subject(changed, cluster, profile, extrapolate, segments)
    _refuse("without a plan there is no model to place on a", cluster=cluster)
    _refuse("only plans have sequences with", lengths=lengths)
    _refuse("only plans have experts with", routing=routing, capacity_factor=capacity_factor)
    _refuse("only plans have stages to be cut into", segments=segments or None)
    costs: dict[str, Any] = {"times": times, "comm": comm}
    if isinstance(given, Program | Trace):
        if isinstance(given, Trace) and given.is_profile:
            raise SpecError(
                f"{file or 'this'} is a profile of what ran, no program that can run again",
                next="`meshwright show` draws it, `meshwright compare PLAN FILE...` sets a prediction beside it",
            )
        _refuse("a program says its own", **counts)
        program = given.program if isinstance(given, Trace) else given
        return _program_subject(program, split, recompute, **costs)
    passes = (split, recompute, with_step)
    if isinstance(given, list):  # orders, from a CSV file
        _refuse("orders say their own", stages=stages, microbatches=microbatches)
        if chunks is not None and chunks < 1:
            raise SpecError(f"{chunks} chunks", allowed="1 or more")
        label = file or "orders"
        return _orders_subject(read_orders(given, label), label, chunks, *passes, **costs)
    return _schedule_subject(given, stages, microbatches, chunks, *passes, **costs)


def _read(given: Any) -> tuple[Any, str]:
    """What was given, read where it is a file of data, and the name of that file."""
    if given is None:
        raise SpecError("nothing was given", allowed="a plan, a program, a CSV file, or a schedule's name")
    if isinstance(given, str | os.PathLike) and is_data_file(given):
        return load(given), os.path.basename(given)
    return given, ""


def plan_subject(
    plan: Plan,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    extrapolate: bool = False,
    segments: bool | None = None,
) -> Subject:
    """A plan's program, placed on its cluster and priced: on GPUs as measured steps were, on processes of this machine by
    its profile or by the data sheet.

    Raises PlanError where no step was measured on a relative of the devices, and `extrapolate` is off.
    """
    from meshwright.prediction.own_runs.own_stack import OwnStack
    from meshwright.prediction.predicted import predict

    schedule = catalog.find_schedule(plan.schedule)
    where = cluster_of(plan, cluster)
    if (segments or plan.has_parts) and where.machine.has_streams:
        _check_segments(plan)
    found = predict(
        plan, where, schedule=schedule, profile=profile, extrapolate=extrapolate, in_segments=bool(segments)
    )
    stack = OwnStack.of(profile, where)
    return predicted_subject(stack.of_plan(found.refined() if segments is None else found))


def _check_segments(plan: Plan) -> None:
    """Raise PlanError for plans of which not all that is sent inside a stage is rows, or that send nothing there. Parts of
    microbatches run in segments only."""
    from meshwright.prediction.composition import not_in_rows, sends_inside

    missing = not_in_rows(plan)
    if missing or not (sends_inside(plan) or plan.has_parts):
        raise PlanError(
            f"a plan with {', '.join(missing) or 'nothing that is sent inside a layer'} in segments",
            allowed="on GPUs tp above 1, or cp by ulysses, with recompute none or full",
            next="leave token_parts out"
            if plan.has_parts
            else "simulate it composed, as it is without --segments",
        )


def predicted_subject(found: Predicted) -> Subject:
    """The program of a plan that was predicted: nothing is lowered, priced or simulated again, but where a step in segments
    has no composed price beside it yet."""
    costs, said = found.pricing.costs, (*found.assumptions, *level_lines(found))
    return Subject(
        found.description, found.program, costs, costs, found.cluster.machine.host, assumptions=said, predicted=found,
    )  # fmt: skip


def level_lines(found: Predicted) -> tuple[str, ...]:
    """What the step is simulated in, for people; nothing where a layer sends nothing."""
    if found.level == "stages":
        return ()
    reasons = "".join(f"; not composable: {each}" for each in found.not_composable)
    if found.level == "composed":
        return (f"composed of its stages' prices{reasons}",)
    has_parts, composed_s = found.plan.has_parts, found.composed_s
    if math.isnan(composed_s) and not found.plan.model.hands_on_results:
        whole = found.plan.changed(token_parts=1) if has_parts else found.plan
        composed_s = replace(found, plan=whole, in_segments=False).step.value
    how = "microbatches in parts" if has_parts else "in segments"
    if math.isnan(composed_s):
        return (f"{how}{reasons}",)
    return (f"{how}; composed of its stages' prices the step takes {format_seconds(composed_s)}{reasons}",)


def _refuse(why: str, **given: Any) -> None:
    """What was given has no meaning for this subject; to ignore it would answer another question."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise SpecError(f"{why} {' and '.join(names)}", next=f"leave {' and '.join(names)} out")


def cluster_of(plan: Plan, cluster: str | ClusterSpec | None) -> ClusterSpec:
    """The cluster that was given, or the one that the plan names."""
    if cluster is not None:
        return cluster_named(cluster)
    if plan.cluster == catalog.DETECTED:
        return Cluster.detect(plan.num_devices)
    try:
        return Cluster(plan.cluster)
    except (SpecError, UnknownNameError) as error:
        raise PlanError(
            f"the plan runs on a cluster {plan.cluster!r} that is no preset",
            allowed="a short name such as 32x8xH100",
            next="give its file with --cluster (cluster=)",
        ) from error


def _orders_subject(
    orders: Orders, label: str, chunks: int | None, split: bool, recompute: bool, with_step: bool, *,
    num_stages: int | None = None, microbatches: int | None = None, skips_stages: bool = False, **costs: Any,
) -> Subject:  # fmt: skip
    """A bare schedule's program: computes, the passes asked for, transfers; all stages alike. Counts are those asked for."""
    from meshwright.ir.program import Axis
    from meshwright.ir.table import ParameterGroup
    from meshwright.lowering.order import program_of_orders

    collapsed = [Axis("dp", REPLICAS, materialised=False)] if with_step else []
    program = program_of_orders(
        orders,
        microbatches=microbatches,
        num_stages=num_stages,
        collapsed=collapsed,
        skips_stages=skips_stages,
    )
    stages = range(program.tables.num_stages)
    if with_step:
        groups = tuple(ParameterGroup(f"stage{stage}", (stage,), 0, ("dp",)) for stage in stages)
        program = program.with_tables(groups=groups)
    if chunks is None:
        chunks = -(-len(stages) // len(orders))
    passes = ["split_backward"] * split + ["recompute"] * recompute
    passes += ["reduce_gradients", "transfers", "optimizer_step"] if with_step else ["transfers"]
    for name in passes:
        program = catalog.find_pass(name)(program)
    return _priced(label, with_shares(program, chunks), **costs)


def _schedule_subject(
    given: Any, stages: int | None, microbatches: int | None, chunks: int | None,
    split: bool, recompute: bool, with_step: bool, **costs: Any,
) -> Subject:  # fmt: skip
    """A schedule, or the one of that name, at these counts."""
    order = catalog.find_schedule(_schedule_given(given))
    p, m = stages or DEFAULT_STAGES, microbatches or DEFAULT_MICROBATCHES
    v = order.num_chunks if chunks is None else chunks
    if stages is not None and stages < 1 or microbatches is not None and microbatches < 1:
        raise SpecError(f"{stages} stages and {microbatches} microbatches", allowed="1 or more of each")
    made = _orders_subject(
        order.orders(p, m, v), order.name, v, split, recompute, with_step, num_stages=p * v, microbatches=m,
        skips_stages=order.skips_stages, **costs,
    )  # fmt: skip
    return replace(made, counts={"stages": p, "microbatches": m, "chunks": v})


def _schedule_given(given: Any) -> str | Schedule | Callable[..., Any]:
    """A schedule, a function that is one, or a name. Raises SpecError for what is neither, such as the name of a model."""
    if isinstance(given, Schedule) or inspect.isfunction(given):
        return given
    if not isinstance(given, str | os.PathLike):
        raise SpecError(
            f"a {type(given).__name__} was given",
            allowed="a plan, a program, orders, a trace, a schedule, a function of counts, or a name",
        )
    name = os.fspath(given)
    if name in catalog.names("models"):
        raise SpecError(
            f"{name} is a model, which alone is no program",
            allowed="a plan, a program, a trace or a schedule",
            next=f"meshwright check {name} CLUSTER --global-batch N --seq N, or make a plan of it: meshwright plan -o",
        )
    return str(name)


def _program_subject(program: Program, split: bool, recompute: bool, **costs: Any) -> Subject:
    if split or recompute:
        raise SpecError(
            "a program was given with --split or --recompute", allowed="passes on plans and schedules"
        )
    if not program.tables.works:
        longest = max((len(path) for path in program.tables.paths), default=1)
        program = with_shares(program, max(1, longest // max(1, program.axes[0].size)))
    return _priced(repr(program), program, **costs)


def _priced(label: str, program: Program, times: Sequence[float] | None, comm: float | None) -> Subject:
    """Textbook costs: seconds by name, and a latency that occupies nothing."""
    from meshwright.costs.fixed_costs import FixedCosts

    if times is not None and len(times) != 3:
        raise SpecError(f"{len(times)} times were given", allowed="three: F, I and W of a full stage")
    forward_s, input_s, weight_s = times or (1.0, 1.0, 1.0)
    costs = FixedCosts.from_times(forward_s, input_s, weight_s, comm or 0.0)
    return Subject(label, program, costs, costs)
