"""Slots of a search: what the user names for a field whose fillers the closed form does not know, and whole planners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from meshwright import catalog
from meshwright.planner.search.filled import filled
from meshwright.planner.search.plans import Plans
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.optimizer import update_rule
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.sharding import ZERO, Sharding
from meshwright.specs.plan.workload import Workload
from meshwright.specs.slot import Reference, reference_text

Search = Callable[[ModelSpec, Mapping[str, Any]], Plans]


def searched_with_slots(
    search: Search,
    model: ModelSpec,
    cluster: ClusterSpec,
    fix: Mapping[str, Any],
    capacity: int,
    **given: Any,
) -> Plans:
    """What `search` finds for the fields that it knows, with the slots filled that it does not know.

    A sharding is ranked as the step of ZeRO that divides the same; a placement and a variant are simulated as they are.

    Raises PlanError, OutOfMemoryError.
    """
    rest = dict(fix)
    if not update_rule(str(rest.get("optimizer", Plan.optimizer))).is_elementwise:
        rest = {"sharding": "none", "tp": 1, **rest}  # it sees whole parameters
    variant, placement = str(rest.pop("variant", "")), str(rest.pop("placement", ""))
    sharding = rest.get("sharding")
    is_foreign = isinstance(sharding, str) and sharding not in ZERO
    if not (variant or placement or is_foreign):
        return search(model, rest)
    if is_foreign:
        rest["sharding"] = _known(str(sharding)).zero
    alike = search(Plan.varied(model, variant), rest)

    def fill(plan: Plan) -> Iterator[Plan]:
        named = plan.changed(placement=placement, variant=variant).placed(cluster)
        for one in _choices(named, cluster, str(sharding)) if is_foreign else (named.sharding,):
            yield named.changed(sharding=one)

    slots = [name for name in (placement, str(sharding) if is_foreign else "", variant) if name]
    like = f", as sharding {rest['sharding']} is ranked" if is_foreign else ""
    why = f"{' and '.join(slots)}: simulated in the plans that the search found best without{like}"
    return filled([each.plan for each in alike], fill, cluster, capacity, why, **given)


def planned_by(
    name: str, model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any], capacity: int,
    **given: Any,
) -> Plans:  # fmt: skip
    """The plans of another planner, predicted here and ranked by their step. Raises PlanError where it has none."""
    found = list(catalog.filler("planner", name)(model, cluster, workload, dict(fix)))
    if not found:
        raise PlanError(
            f"planner {name} finds no plan of {model.name} on {cluster.name}",
            next="fix less, or more devices",
        )
    return filled(found, lambda plan: (plan,), cluster, capacity, f"plans are those of {name}", **given)


def _known(reference: str) -> Sharding:
    found: Sharding = catalog.filler("sharding", reference)
    return found


def _choices(plan: Plan, cluster: ClusterSpec, reference: str) -> tuple[str, ...]:
    """The sharding with its options, or, where none are given and it says which there are, with each of these."""
    made = _known(reference)
    named, say = Reference.of(reference), getattr(type(made), "choices", None)
    if named.options or say is None:
        return (reference,)
    return tuple(reference_text(named.name, _options(each)) for each in say(plan, cluster))


def _options(made: Sharding) -> dict[str, Any]:
    return {f.name: getattr(made, f.name) for f in fields(made) if f.init and f.compare}
