"""Solve for a number: the longest sequence, the largest microbatch, the fewest devices for which some plan does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.planner.advice.advice import largest_of
from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.search.every_plan import allowed_plans, any_fits
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import is_ranked_by_form, search
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.memory_limit import checked_memory
from meshwright.schedules.order import registered
from meshwright.specs.bound.bound import MOST_TOKENS
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload

SEQUENCE_UNIT = 1024  # tokens: what context and tensor parallelism divide by usual degrees
NUM_NEIGHBOURS = (
    3  # so many lengths behind the first that does not fit are tried, too: they may divide by more
)
NUM_TIGHTEST = (
    8  # of candidates that the closed form lets fit, so many are held against the estimate of every device
)
# What takes the least memory as a rule: tried before the whole space.
LEAST_MEMORY: Mapping[str, Any] = {"recompute": "full", "sharding": "zero3"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One number that was tried: whether it does, and a few words on why."""

    value: int
    does: bool
    told: str


@dataclass(frozen=True, eq=False)
class Solution:
    """The number, the plans found with it, and what was tried.

    Attributes:
        what: "seq", "microbatch" or "gpus"; `value` in tokens, sequences or devices.
        cluster: that of the plans.
        found: the search at that number.
        attempts: every number that was tried, in ascending order.
        notes: what limits the number, where it is not monotone, for people.
    """

    what: str
    value: int
    cluster: ClusterSpec
    found: Plans
    attempts: tuple[Attempt, ...]
    notes: tuple[str, ...] = ()


def longest_sequence(
    model: ModelSpec,
    cluster: ClusterSpec,
    global_batch: int,
    *,
    unit: int = SEQUENCE_UNIT,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    max_memory_bytes: int | None = None,
    **options: Any,
) -> Solution:
    """The longest sequence, a multiple of `unit` tokens, for which some plan of the batch fits.

    Doubled until nothing fits, then bisected; a few lengths behind are tried, too, because degrees must divide.

    Args:
        fix, forbid, max_memory_bytes, options: as of `search.search`, which then ranks the plans of that length.

    Raises:
        PlanError: a unit below 1, or as `search`.
        OutOfMemoryError: not even one unit fits; the nearest misses.
    """
    if unit < 1:
        raise PlanError(f"a unit of {unit} tokens", allowed="at least 1, such as 1024")
    capacity = min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    tried: dict[int, bool] = {}

    def fits(count: int) -> bool:
        if count not in tried:
            work = Workload(global_batch, count * unit)
            tried[count] = fits_any(model, cluster, work, fix or {}, forbid, capacity)
        return tried[count]

    count, is_monotone = largest_count(fits, MOST_TOKENS // unit)
    chosen = Workload(global_batch, max(count, 1) * unit)  # of none at all the search says what overflows
    found = search(
        model, cluster, chosen, fix=fix, forbid=forbid, max_memory_bytes=max_memory_bytes, **options
    )
    notes = (
        [] if is_monotone else ["not monotone: a shorter sequence fits no plan, its length divides by less"]
    )
    if chosen.sequence_length > model.max_sequence_length:
        notes.append(f"{model.name} was made for {model.max_sequence_length} tokens")
    attempts = tuple(
        Attempt(each * unit, does, "fits" if does else "nothing fits") for each, does in sorted(tried.items())
    )
    return Solution("seq", chosen.sequence_length, cluster, found, attempts, tuple(notes))


def largest_microbatch(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    max_memory_bytes: int | None = None,
    **options: Any,
) -> Solution:
    """The most sequences of a microbatch for which some plan fits, among the divisors of the batch.

    Raises:
        PlanError: a microbatch that is fixed already, or as `search`.
        OutOfMemoryError: nothing fits.
    """
    if "microbatch_size" in (fix or {}):
        raise PlanError("a microbatch that is fixed and solved for", next="fix other choices only")
    capacity = min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    attempts: list[Attempt] = []
    sizes, num_beyond = _fitting_sizes(model, cluster, workload, fix or {}, forbid, capacity)
    for size, does in sizes:
        attempts.append(Attempt(size, does, "fits" if does else "nothing fits"))
        if does:
            break
    fixed = {**(fix or {}), "microbatch_size": attempts[-1].value}
    found = search(
        model, cluster, workload, fix=fixed, forbid=forbid, max_memory_bytes=max_memory_bytes, **options
    )
    is_whole = len(attempts) == 1 and not num_beyond
    most = "the whole batch of a pipeline: a larger batch allows more" if is_whole else ""
    return Solution(
        "microbatch", attempts[-1].value, cluster, found, tuple(reversed(attempts)), (most,) if most else ()
    )


def _fitting_sizes(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any], forbid: Sequence[str],
    capacity: int,
) -> tuple[Iterator[tuple[int, bool]], int]:  # fmt: skip
    """Of the sizes that some plan has, the largest first: does one of its plans fit? And how many plans have sizes that are
    too large for any device."""
    if not is_ranked_by_form(cluster):
        batch = workload.global_batch
        sizes = [size for size in range(1, batch + 1) if batch % size == 0]
        plans = allowed_plans(model, cluster, workload, registered(), fix, forbid, sizes)
        found = sorted({plan.microbatch_size for plan in plans}, reverse=True)
        return (
            (size, any_fits(model, cluster, workload, fix, forbid, capacity, (size,))) for size in found
        ), 0
    space = space_of(model, cluster, workload, fix=fix, forbid=forbid, is_open=True)
    needed = closed_form(space, tables_of(space, is_priced=False)).needed_bytes
    own = {
        size: np.flatnonzero(space.microbatch_size == size)
        for size in np.unique(space.microbatch_size).tolist()
    }
    return (
        (size, _tightest_fits(space, own[size], needed[own[size]], capacity))
        for size in sorted(own, reverse=True)
    ), space.num_beyond_memory


def largest_count(fits: Callable[[int], bool], most: int) -> tuple[int, bool]:
    """The largest count up to `most` that fits, as far as doubling, bisecting and a few counts behind find it (0: none);
    and whether all that fits is below all that was seen not to."""
    low = largest_of(fits, most)
    above = [
        count for count in range(low + 2, low + 2 + NUM_NEIGHBOURS) if low and count <= most and fits(count)
    ]
    return max([low, *above]), not above


def fits_any(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any], forbid: Sequence[str],
    capacity: int,
) -> bool:  # fmt: skip
    """Does any plan fit? Those that need little are tried first, then all. Raises PlanError where there is no plan at all."""
    if not is_ranked_by_form(cluster):
        return any_fits(model, cluster, workload, fix, forbid, capacity)
    least = {name: value for name, value in LEAST_MEMORY.items() if value not in forbid}
    try:
        space = space_of(
            model, cluster, workload, fix={**least, **fix}, forbid=forbid, microbatch_sizes=(1,), is_open=True
        )
    except PlanError:
        space = None  # those choices exclude each other here; all of them together may not
    if space is not None and _fits(space, capacity):
        return True
    return _fits(space_of(model, cluster, workload, fix=fix, forbid=forbid, is_open=True), capacity)


def _fits(space: Space, capacity: int) -> bool:
    needed = closed_form(space, tables_of(space, is_priced=False)).needed_bytes
    return _tightest_fits(space, np.arange(len(space)), needed, capacity)


def _tightest_fits(space: Space, numbers: Any, needed: Any, capacity: int) -> bool:
    """Does one of these candidates fit by the estimate of every device? The closed form says which are worth asking."""
    for place in np.argsort(needed, kind="stable")[:NUM_TIGHTEST].tolist():
        if needed[place] > capacity:
            return False
        plan = space.plan(int(numbers[place]))
        if checked_memory(plan, space.cluster, capacity)[1] is None:
            return True
    return False
