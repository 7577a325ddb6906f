"""Plans whose slots the closed form does not know: the best of what is alike in it, with the slot filled, simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshwright.planner.search.objective import Objective, sort_key
from meshwright.planner.search.plans import Plans, in_full, keep_best, passed_over, safe_first
from meshwright.prediction.memory_limit import Rejection, out_of_memory
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules.order import Schedule
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import MeshwrightError, PlanError, ScheduleError
from meshwright.specs.plan.plan import Plan

NUM_TRIED = (
    12  # of the plans that are alike; the differences that the closed form cannot see are smaller than theirs
)
NUM_SHOWN_MISSES = 3


def filled(
    alike: Sequence[Plan], fill: Callable[[Plan], Iterable[Plan]], cluster: ClusterSpec, capacity: int, why: str,
    schedule_of: Callable[[str], Schedule], objective: Objective = Objective.TIME,
    risk: float | None = None, search_s: float = 0.0, **given: Any,
) -> Plans:  # fmt: skip
    """The plans that `fill` makes of the best that are alike, simulated and ranked by the objective.

    Args:
        fill: what a plan becomes; nothing, where the slot has no choice that its degrees allow.
        why: what was ranked in their place, for people.
        schedule_of: finds the schedule of a plan's name. given: as of `predict`.
        risk: plans that do not fit with a chance of 1 - `risk` come behind those that do; None: by the objective alone.
        search_s: seconds that finding what is alike has taken.

    Raises:
        PlanError, ScheduleError: no plan has a choice that can be made; the reason of the first that was refused.
        OutOfMemoryError: none fits.
    """
    begun, refused = time.perf_counter(), list[MeshwrightError]()
    tried: dict[Plan, None] = {}
    for plan in alike[:NUM_TRIED]:
        try:
            tried |= dict.fromkeys(fill(plan))
        except PlanError as error:
            refused.append(error)
    found, missed = list[tuple[tuple[float, float, str], Predicted]](), list[Rejection]()
    for plan in tried:
        try:
            each = predict(plan, cluster, schedule=schedule_of(plan.schedule), **given)
            rejection = each.rejected(capacity)
            if rejection is None:
                found.append((sort_key(objective, each), each))
            else:
                missed.append(rejection)
        except (PlanError, ScheduleError) as error:
            refused.append(error)
    if not found and not missed:
        raise (
            refused[0]
            if refused
            else PlanError(f"nothing fills it: {why}", next="fix other degrees, or its options")
        )
    if not found:
        raise out_of_memory(missed[:NUM_SHOWN_MISSES], len(tried), "; fix and forbid less")
    keep_best(best := [each for _, each in sorted(found, key=lambda one: one[0])])
    ranked = in_full(best if risk is None else safe_first(best, capacity, risk), objective)
    if risk is not None:
        ranked = safe_first(ranked, capacity, risk)
    return Plans(
        tuple(ranked), (why,), num_candidates=len(tried), num_too_large=len(missed), num_simulated=len(found),
        search_s=search_s, simulation_s=time.perf_counter() - begun, rejected=tuple(missed),
        passed_over=passed_over(ranked, capacity, risk),
    )  # fmt: skip
