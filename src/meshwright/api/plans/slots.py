"""Slots of a search: what the user names for a field whose fillers the closed form does not know, and whole planners."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from meshwright import catalog
from meshwright.costs.kernel.curve import family_of
from meshwright.planner.search.every_plan import is_forbidden
from meshwright.planner.search.filled import filled
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.proposal import Proposal
from meshwright.planner.space.axis import named
from meshwright.planner.space.check import check_names
from meshwright.schedules.order import Schedule, registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, ScheduleError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.optimizer import update_rule
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.sharding import ZERO
from meshwright.specs.plan.workload import Workload
from meshwright.specs.slot import Reference, reference_text

# What a search is told in words that no plan has: nothing to forbid in the plans of others.
NOT_SAID: Mapping[str, tuple[str, ...]] = {"layers": (), "mesh_order": ()}

Search = Callable[[ModelSpec, Mapping[str, Any]], Plans]


def searched_with_slots(
    search: Search,
    model: ModelSpec,
    cluster: ClusterSpec,
    fix: Mapping[str, Any],
    capacity: int,
    risk: float | None,
    **given: Any,
) -> Plans:
    """What `search` finds for the fields that it knows, with the slots filled that it does not know.

    A sharding is ranked as the step of ZeRO that divides the same, a schedule as 1F1B with as many stages; a placement, a
    variant and passes are simulated as they are.

    Raises PlanError, OutOfMemoryError.
    """
    rest = dict(fix)
    if not update_rule(str(rest.get("optimizer", Plan.optimizer))).is_elementwise:
        rest = {"sharding": "none", "tp": 1, **rest}  # it sees whole parameters
    named = {name: str(rest.pop(name)) for name in ("placement", "variant") if rest.get(name)}
    passes = _texts(rest.pop("passes", ()))
    alike = _alike(rest, cluster)
    named |= {name: str(rest[name]) for name in ("sharding", "schedule") if name in alike}
    if not named and not passes:
        return search(model, rest)
    begun = time.perf_counter()
    best = search(Plan.varied(model, named.get("variant", "")), {**rest, **alike})
    search_s = time.perf_counter() - begun
    choosing = named.pop("sharding", None)

    def fill(plan: Plan) -> Iterator[Plan]:
        one = plan.changed(**named).placed(cluster)
        shardings = (one.sharding,) if choosing is None else _choices("sharding", one, cluster, choosing)
        for sharding, *found in product(
            shardings, *(_choices("passes", one, cluster, each) for each in passes)
        ):
            yield one.changed(sharding=sharding, passes=(*one.passes, *map(PassOption.of, found)))

    told = " and ".join((*named.values(), *([choosing] if choosing else []), *passes))
    like = "".join(
        f", as {name} {alike[name]} is ranked" for name in ("sharding", "schedule") if name in alike
    )
    why = f"{told}: simulated in the plans that the search found best without{like}"
    return filled(
        [each.plan for each in best], fill, cluster, capacity, why,
        schedule_of=catalog.find_schedule, risk=risk, search_s=search_s, **given,
    )  # fmt: skip


def _alike(fix: Mapping[str, Any], cluster: ClusterSpec) -> dict[str, Any]:
    """What the search is asked for in place of what it does not know."""
    found: dict[str, Any] = {}
    sharding, schedule = fix.get("sharding"), fix.get("schedule")
    if isinstance(sharding, str) and sharding not in ZERO:
        found["sharding"] = catalog.filler("sharding", sharding).zero
    if isinstance(schedule, str) and schedule not in registered():
        found |= _pipelines(catalog.find_schedule(schedule), fix, cluster)
        found.setdefault(
            "vocabulary", fix.get("vocabulary", Plan.vocabulary)
        )  # a split is for the orders that it knows
        found["schedule"] = "1f1b" if found["num_chunks"] == 1 else "interleaved_1f1b"
    return found


def _pipelines(schedule: Schedule, fix: Mapping[str, Any], cluster: ClusterSpec) -> dict[str, Any]:
    """Stages on a device and devices of a pipeline that a schedule has orders for. Raises as it does."""
    num_chunks, refused, found = int(fix.get("num_chunks", schedule.num_chunks)), [], []
    every = (n for n in range(2, cluster.num_devices + 1) if cluster.num_devices % n == 0)
    for degree in every if "pp" not in fix else (fix["pp"],) if isinstance(fix["pp"], int) else fix["pp"]:
        try:
            schedule.orders(degree, 2 * degree, num_chunks)
            found.append(degree)
        except (PlanError, ScheduleError) as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    return {"num_chunks": num_chunks, "pp": tuple(found)}


def planned_by(
    name: str, model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any],
    forbid: Sequence[str], capacity: int, **given: Any,
) -> Plans:  # fmt: skip
    """The plans of another planner without those that are forbidden, predicted and ranked here as by `filled`; its notes are
    among what was assumed.

    Raises PlanError where it has none, or for a word that forbids nothing.
    """
    check_names({}, forbid, {**named(), **NOT_SAID, "schedule": catalog.names("schedules")})
    seen = as_planned_on(cluster, capacity, extrapolate=bool(given.get("extrapolate")))
    begun = time.perf_counter()
    every = Proposal.of(catalog.filler("planner", name)(model, seen, workload, dict(fix)))
    search_s = time.perf_counter() - begun
    found = [plan for plan in every if not any(is_forbidden(plan, word) for word in forbid)]
    if every and not found:
        raise PlanError(
            f"--forbid {','.join(forbid)} with --planner {name}, all of whose {len(every)} plans have that",
            allowed=f"words that are not in {every[0].schedule}, {every[0].recompute}, {every[0].sharding}, "
            + ", ".join(f"{axis}={degree}" for axis, degree in every[0].mesh),
            next="forbid less, fix another value, or plan without --planner",
        )
    if not found:
        raise PlanError(
            f"planner {name} finds no plan of {model.name} on {cluster.name}",
            next="fix less, or more devices",
        )
    plans = filled(
        found, lambda plan: (plan,), cluster, capacity, f"plans are those of {name}",
        schedule_of=catalog.find_schedule, search_s=search_s, **given,
    )  # fmt: skip
    return replace(plans, assumptions=(*plans.assumptions, *every.notes))


def as_planned_on(cluster: ClusterSpec, capacity: int, *, extrapolate: bool) -> ClusterSpec:
    """A cluster as another planner sees it, which is told nothing else: devices with the memory that may be used, and prices
    by the data sheet where those are what the user accepts."""
    devices = tuple(replace(each, memory_bytes=min(each.memory_bytes, capacity)) for each in cluster.devices)
    by_sheet = extrapolate and not cluster.costs and family_of(cluster.devices[0]) is None
    costs = "roofline" if by_sheet and cluster.machine.price_model == "step" else cluster.costs
    return replace(cluster, devices=devices, costs=costs)


def _texts(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _choices(slot: str, plan: Plan, cluster: ClusterSpec, reference: str) -> tuple[str, ...]:
    """What fills a slot with its options, or, where none are given and it says which there are, with each of these."""
    made = catalog.filler(slot, reference)
    named, say = Reference.of(reference), getattr(made, "choices", None)
    if named.options or say is None:
        return (reference,)
    return tuple(reference_text(named.name, _options(each)) for each in say(plan, cluster))


def _options(made: Any) -> dict[str, Any]:
    return {f.name: getattr(made, f.name) for f in fields(made) if f.init and f.compare}
