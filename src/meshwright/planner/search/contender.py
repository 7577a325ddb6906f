"""Contenders: of a space those that fit and may be the fastest, evaluated; the rest is proven to be slower, unseen.

Best first: what a candidate's passes compute on all devices together, over the number of devices, with what the devices of
a pipeline wait for each other on average, is less than its step, and has few distinct values. From the least of them on,
candidates are held against memory and priced until the next has a bound well behind the best step that was found.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.closed_form import ClosedForm
from meshwright.planner.form.cost_table import EMBEDDING, HEAD, CostSources, distinct
from meshwright.planner.form.pipeline_form import FULL
from meshwright.planner.search.fitting import Fitting
from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.space import Space
from meshwright.prediction.memory_limit import NUM_NEAREST
from meshwright.schedules.order import registered
from meshwright.specs.plan.sharding import ZERO
from meshwright.specs.plan.software import software_class

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Candidates whose bound is behind the closed form's best step by more than this are not looked at: the form is within a few
# percent, and what is behind in computes alone is never made up.
BEHIND = 1.1
FIRST, FURTHER = (
    1.03,
    1.1,
)  # times the least bound: what is evaluated first; and how much further, while the best step found is behind that
ENOUGH = 512  # candidates that fit, before any are left out: a small space is evaluated whole
NUM_KEPT = 2 * NUM_NEAREST  # of the smallest, which are named where nothing fits
# What decides the bound, besides software; how devices of cp attend does not.
ALONG = ("tp", "cp", "ep", "sequence_parallel", "microbatch_size", "float8")


@dataclass(frozen=True, eq=False)
class Contenders:
    """Candidates that fit and may be the best.

    Attributes:
        space, form: these, and what the closed form says of them, their memory among it.
        num_too_large: of those that were looked at, how many do not fit.
        nearest: of those that were looked at the smallest, at most `NUM_KEPT`, the smallest first.
        skipped_s: seconds below which no step of each of the others is.
        sources: what all were priced from.
        is_complete: False where time ended the look.
    """

    space: Space
    form: ClosedForm
    num_too_large: int
    nearest: Space
    skipped_s: Floats
    sources: CostSources
    is_complete: bool = True

    @classmethod
    def of(
        cls, whole: Space, capacity_bytes: int, *, extrapolate: bool = False, is_all: bool = False,
        sources: CostSources | None = None, ends_s: float = float("inf"),
    ) -> Contenders:  # fmt: skip
        """Of these candidates on devices with so many bytes; `is_all`: with nothing skipped; `sources`: what priced
        this space before. After `ends_s` on the clock no more are looked at, once one fits.

        Raises PlanError as `pricing_of`.
        """
        sources = sources or CostSources(whole, extrapolate=extrapolate)
        least_s = bounds_s(whole, sources)
        is_left, found = np.ones(len(whole), dtype=bool), _Found(whole, capacity_bytes, sources)
        is_complete = True
        limit_s = np.inf if is_all and ends_s == np.inf else FIRST * float(least_s.min())
        while is_left.any():
            own = np.flatnonzero(is_left & (least_s <= limit_s))
            is_left[own] = False
            found.look_at(own)
            next_s = float(least_s[is_left].min(initial=np.inf))
            is_enough = found.num_fitting >= ENOUGH and not is_all
            if is_enough and next_s > BEHIND * found.best_s:
                break
            if found.num_fitting and is_left.any() and time.perf_counter() >= ends_s:
                is_complete = False
                break
            limit_s = max(FURTHER * limit_s, FIRST * next_s)
            if is_enough:
                limit_s = min(limit_s, BEHIND * found.best_s)
        skipped_s = np.repeat(least_s[is_left], whole.num_kinds[is_left])
        return replace(found.contenders(skipped_s), is_complete=is_complete)


def bounds_s(space: Space, sources: CostSources) -> Floats:
    """Seconds below which no step of a candidate is: what its busiest device computes is at least the mean of all, and so
    is that with what the device waits for before its first compute and behind its last."""
    named = space.formats.get("software", "")
    software = [software_class(named, gathers_values=ZERO[each].divides_values).name for each in SHARDINGS]
    number_of = np.array([software.index(name) for name in software])
    columns = [getattr(space, name) for name in ALONG]
    way, first = distinct([*columns, space.expert_tp, number_of[space.sharding]])
    number, found, has_full = sources.counts.sum(axis=0), [], FULL in space.recompute
    # what others compute is less for no recompute
    plans = [space.one_stage(row, recompute="none") for row in first.tolist()]
    sources.passes.prepare(plans, ("F", "B"))
    for plan in plans:
        both = (forward := sources.passes.least_s(plan, "F")) + sources.passes.least_s(plan, "B")
        again = forward  # R is F, but in software that stops early
        if has_full and plan.software_class.stops_early:
            again = sources.passes.least_s(plan.changed(recompute="full"), "R")
        ends = both[EMBEDDING] + both[HEAD]
        whole = both[:EMBEDDING] @ number + ends
        of_block = (each[:EMBEDDING].min() for each in (both, again))
        found.append((sources.passes.overhead_s(plan), whole, ends, *of_block))
    overhead_s, whole, ends, both, again = np.array(found).T[:, way]
    # of a split vocabulary nothing is counted: what a part of it takes is not known here
    whole = np.where(space.vocabulary > 0, whole - ends, whole)
    splits = np.array([registered()[name].splits_backward for name in space.names["schedule"]])
    ahead, recomputed = _block_counts(space)
    # where a backward has two halves, the second fills what would be a wait behind
    waited = np.where(splits[space.schedule], 0.0, ahead * both)
    computed = whole + np.where(space.recompute == FULL, recomputed * again, 0.0)
    return np.asarray(space.num_microbatches * computed / space.pp + waited + overhead_s)


def _block_counts(space: Space) -> tuple[Floats, Floats]:
    """Blocks that a microbatch passes before it first reaches a device, on average over the devices of its pipeline; and
    those of the model that run again, where any do."""
    shape, first = distinct([space.pp, space.num_chunks, space.layers, space.recompute_blocks])
    found = []
    for row in first.tolist():
        pp, layers = int(space.pp[row]), np.array(space.layers_per_stage(row))
        most = int(space.recompute_blocks[row]) or int(layers.max())
        found.append((layers[:pp] @ np.arange(pp - 1, -1, -1) / pp, np.minimum(layers, most).sum()))
    ahead, recomputed = np.array(found, dtype=float).T
    return ahead[shape], recomputed[shape]


class _Found:
    """What was looked at so far."""

    def __init__(self, whole: Space, capacity_bytes: int, sources: CostSources) -> None:
        self.num_fitting, self.best_s = 0, np.inf
        self._whole, self._capacity, self._sources = whole, capacity_bytes, sources
        self._num_seen = 0
        self._smallest: list[tuple[Floats, Space]] = []  # bytes of each
        self._fitting: list[tuple[Ints, ClosedForm, Space]] = []  # numbers in the whole space

    def look_at(self, numbers: Ints) -> None:
        """Hold these candidates against memory, and price those that fit."""
        space = self._whole.taken(numbers)
        fitting = Fitting.of(space, self._capacity, self._sources)
        self._num_seen += int(space.num_kinds.sum())
        needed = fitting.memory.needed_bytes
        least = np.argsort(needed, kind="stable")[:NUM_KEPT]
        self._smallest.append((needed[least], space.taken(least)))
        if len(fitting.numbers):
            rows, chosen, form = fitting.priced()
            self._fitting.append((numbers[rows], form, chosen))
            self.num_fitting += len(rows)
            self.best_s = min(self.best_s, float(form.step_s.min(initial=np.inf)))

    def contenders(self, skipped_s: Floats) -> Contenders:
        """All that fit, in the order of the whole space."""
        needed = np.concatenate([each for each, _ in self._smallest])
        nearest = Space.joined([each for _, each in self._smallest])
        nearest = nearest.taken(np.argsort(needed, kind="stable")[:NUM_KEPT])
        numbers = np.concatenate([np.empty(0, dtype=np.int64), *(own for own, _, _ in self._fitting)])
        order = np.argsort(numbers, kind="stable")
        form = ClosedForm.joined([form for _, form, _ in self._fitting]).taken(order)
        spaces = [space for _, _, space in self._fitting]
        space = Space.joined(spaces).taken(order) if spaces else nearest.taken(order)
        return Contenders(space, form, self._num_seen - len(numbers), nearest, skipped_s, self._sources)
