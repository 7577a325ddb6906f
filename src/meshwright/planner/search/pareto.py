"""Pareto: the plans that no other beats in both step and memory: what each gigabyte left free costs in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.search.fitting import Fitting
from meshwright.planner.search.ranked import Ranked
from meshwright.planner.search.search import PlannedStep, search, simulated
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.description import describe
from meshwright.prediction.memory_limit import checked_memory
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NUM_SIMULATED = 24  # members of the frontier; more rows than people compare
LEAST_GAIN = 0.005  # of memory: a member that saves less than this share over a faster one is the same


@dataclass(frozen=True, eq=False)
class Frontier(Ranked[PlannedStep]):
    """Simulated plans none of which is both slower and larger than another, the fastest first.

    Attributes:
        num_candidates, num_evaluated: of the space, and those of it that fit by the closed form.
        num_on_frontier: of those, how many the closed form's frontier has; at most `num_simulated` were simulated.
        wall_s: seconds that it took.
    """

    plans: tuple[PlannedStep, ...]
    assumptions: tuple[str, ...]
    num_candidates: int
    num_evaluated: int
    num_on_frontier: int
    num_simulated: int
    wall_s: float


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
    num_simulated: int = NUM_SIMULATED,
    progress: Callable[[str, float], None] | None = None,
    extrapolate: bool = False,
    assumptions: Sequence[str] = (),
) -> Frontier:
    """The frontier of step and peak memory on GPUs: by the closed form, its members simulated.

    Plans that the closed form puts just behind its frontier may be on the true one: it is off by a few percent.

    Args: as of `search.search`; of a longer frontier every so-manieth member is simulated, both ends among them.

    Raises PlanError and OutOfMemoryError as `search.search`.
    """
    begun = time.perf_counter()
    options: dict[str, Any] = {"fix": fix, "forbid": forbid, "microbatch_sizes": microbatch_sizes}
    capacity = min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    whole = space_of(model, cluster, workload, **options)
    fitting = Fitting.of(whole, capacity)
    fits = fitting.numbers
    members: list[PlannedStep] = []
    front: Ints = np.empty(0, dtype=np.int64)
    if len(fits):
        space, form = fitting.priced(extrapolate=extrapolate)
        step_s = form.step_s
        front = undominated(step_s, fitting.memory.allocated_bytes[fits], LEAST_GAIN)
        chosen = _spread(front, num_simulated)
        members = _simulated(space, chosen, step_s, capacity, progress, extrapolate)
    if not members:  # the search says why, or finds what rounding hid
        found = search(
            model, cluster, workload, **options, max_memory_bytes=max_memory_bytes, extrapolate=extrapolate,
            num_simulated=num_simulated, progress=progress,
        )  # fmt: skip
        members = list(found)
    kept = undominated(_column(members, "step"), _column(members, "peak"))
    return Frontier(
        tuple(members[number] for number in kept.tolist()), tuple(assumptions), whole.num_candidates, len(fits), len(front),
        len(members), time.perf_counter() - begun,
    )  # fmt: skip


def _spread(front: Ints, most: int) -> Ints:
    """At most so many of the members, evenly, with both ends."""
    if len(front) <= most:
        return front
    return front[np.unique(np.linspace(0, len(front) - 1, most).round().astype(np.int64))]


def _column(members: Sequence[PlannedStep], what: str) -> Floats:
    return np.array([each.step.value if what == "step" else each.peak_bytes for each in members])


def _simulated(
    space: Space, chosen: Ints, step_s: Floats, capacity: int, progress: Callable[[str, float], None] | None,
    extrapolate: bool,
) -> list[PlannedStep]:  # fmt: skip
    """Those of the chosen that fit by the estimate of every device, too."""
    found = []
    for place, number in enumerate(chosen.tolist()):
        plan = space.plan(number)
        if progress is not None:
            progress(describe(plan), place / len(chosen))
        memory, missed = checked_memory(plan, space.cluster, capacity)
        if missed is None:
            found.append(simulated(plan, space.cluster, memory, float(step_s[number]), extrapolate))
    return found
