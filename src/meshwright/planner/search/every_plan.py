"""Every plan: where no closed form knows what a machine's steps take, all plans that its devices allow are simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.costs.measured.calibrated_cluster import calibrated_cluster
from meshwright.costs.pricing import Pricing, pricing_of
from meshwright.lowering.segment.beside_plan import has_pairs, is_beside, pairs_of
from meshwright.planner.search.objective import Objective, sort_key
from meshwright.planner.search.plans import Plans
from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.check import SWITCHES
from meshwright.planner.space.degrees import divisors
from meshwright.planner.space.layer_split import layer_splits
from meshwright.prediction.description import describe
from meshwright.prediction.memory_limit import out_of_memory
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_program import ITERATIONS
from meshwright.schedules.order import Schedule, registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Recompute
from meshwright.specs.plan.workload import Workload

TRIED_RECOMPUTES: tuple[Recompute, ...] = ("none", "full")  # what the executor runs
ONE_STAGE_ORDER = "1f1b"  # without stages to fill all orders take as long, and this one keeps the least
PROCESS_DTYPE = "float32"  # what cores compute in where nobody chose
Progress = Callable[[str, float], None]


def every_plan(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    microbatch_sizes: Sequence[int] | None = None,
    max_memory_bytes: int | None = None,
    num_simulated: int | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    assumptions: Sequence[str] = (),
    objective: Objective = Objective.TIME,
    schedules: Mapping[str, Schedule] | None = None,
    pricing: Pricing | None = None,
    profile: Profile | None = None,
    iterations: int = ITERATIONS,
) -> Plans:
    """All plans that the cluster's devices allow, simulated and ranked. Deterministic, unless a time limit ends it.

    Args:
        fix: fields of `Plan` that are decided already, such as {"pp": 2}; a tuple of what is tried allows several values.
        forbid: axes that must stay at one, or values that must not be taken, as of `search.search`.
        microbatch_sizes: sequences of a microbatch to try, where they divide a pipeline's batch; None: every one that does.
        num_simulated: at most so many, in the order of the space; None: all.
        schedules: the orders to try, by name; None: all that are registered.
        pricing, profile, iterations: as of `predict`.
        Others as of `search.search`.

    Raises:
        PlanError: no plan exists for these devices, this batch and what is fixed.
        OutOfMemoryError: no plan fits; names the nearest misses and who holds the most.
    """
    begun, known = time.perf_counter(), registered() if schedules is None else schedules
    cluster = calibrated_cluster(cluster, profile)
    plans = allowed_plans(model, cluster, workload, known, fix or {}, forbid, microbatch_sizes)
    pricing = pricing or pricing_of(plans[0], cluster, profile=profile)
    searched = time.perf_counter()
    found: list[Predicted] = []
    rejected, seen, is_complete = [], set(), True
    try:
        for number, plan in enumerate(plans):
            if _is_over(found, num_simulated, begun, time_limit_s):
                is_complete = False
                break
            if progress is not None:
                progress(describe(plan), number / len(plans))
            schedule = known[plan.schedule]
            each = predict(plan, cluster, schedule=schedule, pricing=pricing, iterations=iterations)
            missed = each.rejected(max_memory_bytes)
            if missed is not None:
                rejected.append(missed)
            elif (digest := each.program.digest()) not in seen:
                seen.add(digest)  # with one microbatch, or one stage, several schedules are the same program
                _ = each.step
                each.forget()
                found.append(each)
    except KeyboardInterrupt:
        if not found:
            raise
        is_complete = False
    if not found:
        raise out_of_memory(rejected)
    ranked = sorted(found, key=lambda one: sort_key(objective, one))
    gap = 0.0 if is_complete and objective is not Objective.MEMORY else None  # nothing was left out
    return Plans(
        tuple(ranked), tuple(assumptions), len(plans), len(rejected), num_simulated=len(ranked),
        search_s=searched - begun, simulation_s=time.perf_counter() - searched, is_complete=is_complete,
        optimality_gap=gap, rejected=tuple(rejected),
    )  # fmt: skip


def _is_over(
    found: Sequence[Predicted], num_simulated: int | None, begun: float, time_limit_s: float | None
) -> bool:
    """Were as many simulated as wanted, or was it long enough? One always is."""
    if not found:
        return False
    is_late = time_limit_s is not None and time.perf_counter() - begun >= time_limit_s
    return is_late or (num_simulated is not None and len(found) >= num_simulated)


def any_fits(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any], forbid: Sequence[str],
    most_bytes: int, sizes: Sequence[int] | None = None,
) -> bool:  # fmt: skip
    """Does any plan fit? Raises PlanError where there is no plan at all."""
    plans = allowed_plans(model, cluster, workload, registered(), fix, forbid, sizes)
    pricing = pricing_of(plans[0], cluster)
    return any(predict(plan, cluster, pricing=pricing).rejected(most_bytes) is None for plan in plans)


def allowed_plans(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, schedules: Mapping[str, Schedule],
    fix: Mapping[str, Any], forbid: Sequence[str], sizes: Sequence[int] | None,
) -> list[Plan]:  # fmt: skip
    """The plans of the space without what is forbidden. Raises PlanError where there is none."""
    _check_words(forbid, schedules)
    plans = [
        plan
        for plan in choices(model, cluster, workload, schedules, fix, sizes)
        if not any(is_forbidden(plan, word) for word in forbid)
    ]
    if not plans:
        without = f" and {', '.join(forbid)} forbidden" if forbid else ""
        raise PlanError(
            f"no plan puts a batch of {workload.global_batch} and {model.num_layers} layers on "
            f"{cluster.num_devices} devices with {dict(fix) or 'nothing'} fixed{without}",
            allowed="a batch that the data-parallel degree divides, at most as many stages as layers",
            next="change the batch or the number of devices, or fix and forbid less",
        )
    return plans


def is_forbidden(plan: Plan, word: str) -> bool:
    """Does a plan use this axis, or this schedule, sharding, recompute, vocabulary or kind of context parallelism?"""
    if word in (
        plan.recompute,
        plan.sharding,
        plan.schedule,
        plan.vocabulary,
        *((plan.context,) if plan.cp > 1 else ()),
    ):
        return True
    if word == "etp":
        return plan.has_own_expert_tp
    return getattr(plan, word, 1) not in (0, 1, False, (), Plan.vocabulary)


def _check_words(forbid: Sequence[str], schedules: Mapping[str, Schedule]) -> None:
    """Raises PlanError for a word that forbids nothing here."""
    allowed = (*SWITCHES, "split_backward", *TRIED_RECOMPUTES[1:], *SHARDINGS[1:], *schedules)
    for word in forbid:
        if word not in allowed:
            raise PlanError(f"the search has no {word!r} to forbid", allowed=", ".join(allowed))


def choices(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    schedules: Mapping[str, Schedule],
    fix: Mapping[str, Any],
    microbatch_sizes: Sequence[int] | None = None,
) -> Iterator[Plan]:
    """Every plan of the space, in a fixed order; nothing is lowered yet. Raises PlanError on an unknown field.

    Stages are even, and uneven where devices or the model's ends are (`layer_splits`); microbatches, where no sizes are
    given, every divisor of a pipeline's batch.
    """
    wanted = {**fix}
    wanted.setdefault("dtype", PROCESS_DTYPE)
    every = tuple(divisors(workload.global_batch) if microbatch_sizes is None else microbatch_sizes)
    sizes = _values(wanted.pop("microbatch_size", every))
    for name, value in [
        *(("microbatch_size", size) for size in sizes),
        ("num_chunks", wanted.get("num_chunks", 1)),
    ]:
        if not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} is {value!r}", allowed="a whole number from 1")
    for pp, dp in _open_degrees(cluster.num_devices // _taken(wanted), wanted):
        for name in _orders(schedules, pp):
            if name not in _values(wanted.get("schedule")) and _is_refused(model, schedules[name], wanted):
                continue
            for options in _options(schedules[name], pp, workload.global_batch, dp, sizes):
                choice = {"schedule": name, "pp": pp, "dp": dp, **options}
                if choice["num_chunks"] > 1:  # how many there are is a choice where there are any
                    choice["num_chunks"] = wanted.get("num_chunks", choice["num_chunks"])
                # what is fixed and has no alternatives here (dtype, tp, ...) is simply handed on
                if any(choice[key] not in _values(wanted[key]) for key in choice.keys() & wanted.keys()):
                    continue
                if pp * choice["num_chunks"] <= model.num_layers:
                    plan = Plan.of(model, cluster, workload, **{**wanted, **choice})
                    is_asked = name in _values(wanted.get("schedule")) and not pairs_of(plan, schedules[name])
                    if is_beside(plan) and not is_asked and not has_pairs(plan, schedules[name]):
                        continue  # whose microbatches do not stand beside each other; who asks for such an order is told
                    is_open = "layers_per_stage" not in wanted
                    splits = layer_splits(plan, cluster) if is_open else (plan.layers_per_stage,)
                    yield from (plan.changed(layers_per_stage=split) for split in splits)


def _is_refused(model: ModelSpec, schedule: Schedule, wanted: Mapping[str, Any]) -> bool:
    """Does `lower` refuse the order with what is fixed: copies of a stage that is frozen, or whose vocabulary is split?

    Passes of an interlaced vocabulary have an order of their own with 1F1B only.
    """
    split = set(_values(wanted.get("vocabulary", Plan.vocabulary))) - {Plan.vocabulary}
    if schedule.num_copies > 1 and (model.is_adapted or split):
        return True
    return "interlaced" in split and schedule.name != ONE_STAGE_ORDER


def _values(given: Any) -> tuple[Any, ...]:
    """Of a choice that is fixed: to one value, or to several."""
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def _taken(fix: Mapping[str, Any]) -> int:
    """Devices that fixed degrees of other axes take."""
    return max(1, int(fix.get("tp", 1)) * int(fix.get("cp", 1)))


def _degrees(num_devices: int) -> list[tuple[int, int]]:
    """(pp, dp) with pp x dp devices, pipelines from short to long."""
    return [(pp, num_devices // pp) for pp in range(1, num_devices + 1) if num_devices % pp == 0]


def _open_degrees(num_devices: int, fix: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Those that experts divide, where their degree is fixed; all where none does, whose plans are then refused by name."""
    found, expert = _degrees(num_devices), fix.get("ep", 1)
    fixed = {name: _values(fix[name]) for name in ("pp", "dp") if name in fix}
    found = [(pp, dp) for pp, dp in found if all({"pp": pp, "dp": dp}[name] in fixed[name] for name in fixed)]
    if not isinstance(expert, int) or expert < 1:
        return found
    return [(pp, dp) for pp, dp in found if dp * _taken(fix) % expert == 0] or found


def _orders(schedules: Mapping[str, Schedule], pp: int) -> list[str]:
    """Schedules worth trying on `pp` devices: on one device, one."""
    if pp > 1:
        return [name for name, one in schedules.items() if one.takes_devices(pp)]
    plain = [name for name, s in schedules.items() if s.num_chunks == 1 and not s.splits_backward]
    return [ONE_STAGE_ORDER] if ONE_STAGE_ORDER in plain else plain[:1]


def _options(
    schedule: Schedule, pp: int, global_batch: int, dp: int, sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Everything else that can be chosen: microbatch, recompute, split backward (it helps only where somebody waits)."""
    splits = (False,) if pp == 1 or schedule.splits_backward else (False, True)
    for size in sizes:
        if global_batch % (dp * size):
            continue
        for recompute in TRIED_RECOMPUTES:
            for split in splits:
                yield {
                    "microbatch_size": size,
                    "recompute": recompute,
                    "split_backward": split,
                    "num_chunks": schedule.num_chunks,
                }
