"""Pareto: the plans that no other beats in both step and memory: what each gigabyte left free costs in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.cost_table import CostSources
from meshwright.planner.search.fitting import Fitting
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import is_ranked_by_form, search
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.description import describe
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NUM_SIMULATED = 24  # members of the frontier; more rows than people compare
LEAST_GAIN = 0.005  # of memory: a member that saves less than this share over a faster one is the same


def undominated(step_s: Floats, peak_bytes: Floats, least_gain: float = 0.0) -> Ints:
    """Numbers of the candidates that no other equals or beats in both, the fastest first.

    Args:
        step_s, peak_bytes: of every candidate, [n]; of equal ones the first counts.
        least_gain: share of the memory of every faster member that a member must save.
    """
    order = np.lexsort((peak_bytes, step_s))
    sizes = peak_bytes[order]
    least = np.minimum.accumulate(np.concatenate([[np.inf], sizes]))[:-1]
    found = order[sizes < least]
    if not least_gain or not len(found):
        return found
    kept, last = [], np.inf
    for number in found.tolist():
        if peak_bytes[number] <= (1 - least_gain) * last:
            kept.append(number)
            last = peak_bytes[number]
    return np.array(kept, dtype=np.int64)


def frontier(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    microbatch_sizes: Sequence[int] | None = None,
    max_memory_bytes: int | None = None,
    num_simulated: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    extrapolate: bool = False,
    assumptions: Sequence[str] = (),
    **others: Any,
) -> Plans:
    """Simulated plans none of which is both slower and larger than another, the fastest first: the frontier of step and peak
    memory by the closed form.

    Plans that the closed form puts just behind its frontier may be on the true one: it is off by a few percent.

    Where no closed form knows the machine, all plans are simulated, and the frontier is theirs.

    Args: as of `search.search`, `others` too; of a longer frontier every so-manieth member is simulated,
    with both ends.

    Raises PlanError and OutOfMemoryError as `search.search`.
    """
    begun = time.perf_counter()
    options: dict[str, Any] = {
        "fix": fix, "forbid": forbid, "max_memory_bytes": max_memory_bytes, "extrapolate": extrapolate,
        "progress": progress, **others,
    }  # fmt: skip
    if not is_ranked_by_form(cluster):
        every = search(
            model, cluster, workload, assumptions=assumptions, microbatch_sizes=microbatch_sizes,
            num_simulated=num_simulated, **options,
        )  # fmt: skip
        best = undominated(_column(every, "step"), _column(every, "peak"))
        return replace(
            every, plans=tuple(every[number] for number in best.tolist()), num_on_frontier=len(best)
        )
    most = NUM_SIMULATED if num_simulated is None else num_simulated
    capacity = min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    whole = space_of(
        model, cluster, workload, fix=fix, forbid=forbid, microbatch_sizes=microbatch_sizes, is_open=True
    )
    fitting = Fitting.of(whole, capacity, CostSources(whole, extrapolate=extrapolate))
    num_fitting = 0
    searched_s = time.perf_counter() - begun
    members: list[Predicted] = []
    front: Ints = np.empty(0, dtype=np.int64)
    if len(fitting.numbers):
        rows, space, form = fitting.priced()
        num_fitting, step_s = len(rows), form.step_s
        front = undominated(step_s, form.allocated_bytes, LEAST_GAIN)
        chosen = _spread(front, most)
        members = _simulated(space, chosen, step_s, capacity, progress, extrapolate)
    if not members:  # the search says why, or finds what rounding hid
        found = search(
            model, cluster, workload, microbatch_sizes=microbatch_sizes, num_simulated=most, **options
        )
        members = list(found)
    kept = undominated(_column(members, "step"), _column(members, "peak"))
    return Plans(
        tuple(members[number] for number in kept.tolist()), tuple(assumptions), whole.num_candidates,
        whole.num_candidates - num_fitting,
        num_simulated=len(members), num_on_frontier=len(front), search_s=searched_s,
        simulation_s=time.perf_counter() - begun - searched_s,
    )  # fmt: skip


def _spread(front: Ints, most: int) -> Ints:
    """At most so many of the members, evenly, with both ends."""
    if len(front) <= most:
        return front
    return front[np.unique(np.linspace(0, len(front) - 1, most).round().astype(np.int64))]


def _column(members: Sequence[Predicted], what: str) -> Floats:
    return np.array([each.step.value if what == "step" else each.peak_bytes for each in members])


def _simulated(
    space: Space, chosen: Ints, step_s: Floats, capacity: int, progress: Callable[[str, float], None] | None,
    extrapolate: bool,
) -> list[Predicted]:  # fmt: skip
    """Those of the chosen that fit by the estimate of every device, too."""
    found = []
    for place, number in enumerate(chosen.tolist()):
        plan = space.plan(number)
        if progress is not None:
            progress(describe(plan), place / len(chosen))
        each = predict(plan, space.cluster, extrapolate=extrapolate, closed_form_s=float(step_s[number]))
        if each.rejected(capacity) is None:
            found.append(full := each.refined())
            _ = full.step
            each.forget()
            full.forget()
    return found
