"""Contenders: of a space those that fit and may be the fastest, evaluated; the rest is proven to be slower, unseen.

Best first: what any device of a candidate's pipeline computes, with what it waits for before and behind, is less than its
step, and has few distinct values. From the least of them on, candidates are held against memory and priced until the next
has a bound well behind the best step that was found.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.closed_form import ClosedForm
from meshwright.planner.form.cost_table import EMBEDDING, HEAD, CostSources
from meshwright.planner.form.distinct import distinct
from meshwright.planner.form.pipeline_form import FULL
from meshwright.planner.form.schedule_shape import stage_devices
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
# Times the least bound: what is evaluated first; and how much further, while the best step found is behind that.
FIRST, FURTHER = 1.03, 1.1
ENOUGH = 512  # candidates that fit, before any are left out: a small space is evaluated whole
NUM_KEPT = 2 * NUM_NEAREST  # of the smallest, which are named where nothing fits
# What decides the bound, besides software. Where a row stands for several ways to attend, it is that of the quickest.
ALONG = ("tp", "cp", "ep", "sequence_parallel", "microbatch_size", "float8")
ATTENDING = ("context", "token_layout", "ulysses")


@dataclass(frozen=True, eq=False)
class Contenders:
    """Candidates that fit and may be the best.

    Attributes:
        space, form: these, and what the closed form says of them, their memory among it.
        num_too_large: of those that were looked at, how many do not fit.
        nearest: of those that were looked at the smallest, at most `NUM_KEPT`, the smallest first.
        skipped_s: seconds below which no step of each of the others is.
        uneven, uneven_s: of the pipelines that were skipped, or are too large, those that may be as fast as the best if they
            spread what the embedding and the head compute and hold over all devices, and the seconds below which no step of
            theirs is then.
        sources: what all were priced from.
        is_complete: False where time ended the look.
    """

    space: Space
    form: ClosedForm
    num_too_large: int
    nearest: Space
    skipped_s: Floats
    uneven: Space
    uneven_s: Floats
    sources: CostSources
    is_complete: bool
    _found: _Found

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
        found = _Found(whole, capacity_bytes, sources)
        is_complete = found.look(is_all=is_all, ends_s=ends_s)
        return found.contenders(is_complete=is_complete)

    def wider(self, until_s: float, ends_s: float) -> Contenders:
        """With those of the others whose steps may be no longer than this, however far they are behind the best; the look
        goes on where it ended."""
        is_complete = self._found.look(ends_s=ends_s, until_s=until_s)
        return self._found.contenders(is_complete=is_complete)


class Bounds(NamedTuple):
    """Seconds below which no step of a candidate is, [n].

    Attributes:
        least_s: what any of its devices computes, behind the first microbatch's way to it and before the last one's way back.
        even_s: the same, with what the embedding and the head compute spread over all devices.
    """

    least_s: Floats
    even_s: Floats


def bounds_of(space: Space, sources: CostSources) -> Bounds:
    """The first compute of a device is a forward of its first stage, and the last one its backward: before and behind them
    a microbatch passes all stages ahead of it. Where a backward has two halves, the second fills the wait behind."""
    seconds, blocks = _least_seconds(space, sources), _block_counts(space)
    is_whole = space.vocabulary == 0
    # of a split vocabulary nothing is counted: what a part of it takes is not known here
    embedding, head = (np.where(is_whole, each, 0.0) for each in (seconds.embedding, seconds.head))
    again = np.where(space.recompute == FULL, seconds.again, 0.0)
    splits = np.array([registered()[name].splits_backward for name in space.names["schedule"]])[
        space.schedule
    ]
    m, behind = space.num_microbatches, np.where(splits, 0.0, seconds.block - seconds.forward)
    computed = seconds.blocks + embedding + head + blocks.rerun * again
    least_s = even_s = m * computed / space.pp + np.where(splits, 0.0, blocks.ahead * seconds.block)
    for each in blocks.devices:
        busy_s = m * (each.blocks * seconds.block + each.rerun * again)
        busy_s += each.ahead * (seconds.forward + behind)
        ends_s = m * (each.has_embedding * embedding + each.has_head * head)
        even_s, least_s = np.maximum(even_s, busy_s), np.maximum(least_s, busy_s + ends_s)
    return Bounds(least_s + seconds.overhead, even_s + seconds.overhead)


class _Seconds(NamedTuple):
    """Of every candidate at least, of one microbatch there and back: all blocks, one of them, of this its forward, the
    embedding and the head; one block that runs again; and of a step what no pass takes."""

    blocks: Floats
    block: Floats
    forward: Floats
    embedding: Floats
    head: Floats
    again: Floats
    overhead: Floats


def _least_seconds(space: Space, sources: CostSources) -> _Seconds:
    """What others compute is less for no recompute."""
    named = space.formats.get("software", "")
    software = [software_class(named, gathers_values=ZERO[each].divides_values).name for each in SHARDINGS]
    number_of = np.array([software.index(name) for name in software])
    columns = [getattr(space, name) for name in (*ALONG, *(() if space.open_contexts else ATTENDING))]
    way, first = distinct([*columns, space.expert_tp, number_of[space.sharding]])
    number, found, has_full = sources.counts.sum(axis=0), [], FULL in space.recompute
    plans = [space.one_stage(row, recompute="none") for row in first.tolist()]
    sources.passes.prepare(plans, ("F", "B"))
    for plan in plans:
        ways = space.attending(plan.tp, plan.cp)
        both = (forward := sources.passes.least_s(plan, "F", ways)) + sources.passes.least_s(plan, "B", ways)
        again = forward  # R is F, but in software that stops early
        if has_full and plan.software_class.stops_early:
            again = sources.passes.least_s(plan.changed(recompute="full"), "R", ways)
        of_block = (each[:EMBEDDING].min() for each in (both, forward))
        ends = (both[EMBEDDING], both[HEAD], again[:EMBEDDING].min(), sources.passes.overhead_s(plan))
        found.append((both[:EMBEDDING] @ number, *of_block, *ends))
    return _Seconds(*np.array(found).T[:, way])


class _DeviceBlocks(NamedTuple):
    """Of every candidate, what one device has: blocks that a microbatch passes before it first reaches it, its own, how many
    of these run again where any do, and whether it has the ends of the model."""

    ahead: Floats
    blocks: Floats
    rerun: Floats
    has_embedding: Floats
    has_head: Floats


class _Blocks(NamedTuple):
    """Blocks ahead of a device, on average over those of its pipeline; blocks of the model that run again, where any do; and
    the devices that may be the last to end: of most blocks, of most ahead, and of either end."""

    ahead: Floats
    rerun: Floats
    devices: tuple[_DeviceBlocks, ...]


def _block_counts(space: Space) -> _Blocks:
    columns = [space.pp, space.num_chunks, space.layers, space.recompute_blocks, space.schedule]
    shape, first = distinct(columns)
    found = np.array([_counts_of(space, row) for row in first.tolist()], dtype=float).T[:, shape]
    size = len(_DeviceBlocks._fields)
    devices = (_DeviceBlocks(*found[place : place + size]) for place in range(2, len(found), size))
    return _Blocks(found[0], found[1], tuple(devices))


def _counts_of(space: Space, row: int) -> list[float]:
    """Of one candidate, the numbers of `_Blocks`."""
    pp, chunks = int(space.pp[row]), int(space.num_chunks[row])
    layers = np.array(space.layers_per_stage(row))
    rerun = np.minimum(layers, int(space.recompute_blocks[row]) or int(layers.max()))
    schedule = space.names["schedule"][int(space.schedule[row])]
    placed = np.array(stage_devices(schedule, pp, chunks) if pp > 1 else (0,) * chunks)
    blocks, again = (np.bincount(placed, weights=each, minlength=pp) for each in (layers, rerun))
    ahead = (np.cumsum(layers) - layers)[np.unique(placed, return_index=True)[1]]
    found = [float(ahead.mean()), float(rerun.sum())]
    for device in (int(blocks.argmax()), int(ahead.argmax()), int(placed[0]), int(placed[-1])):
        found += [ahead[device], blocks[device], again[device], device == placed[0], device == placed[-1]]
    return found


class _Found:
    """What was looked at so far."""

    def __init__(self, whole: Space, capacity_bytes: int, sources: CostSources) -> None:
        self.num_fitting, self.best_s = 0, np.inf
        self._whole, self._capacity, self._sources = whole, capacity_bytes, sources
        self._bounds, self._is_left = bounds_of(whole, sources), np.ones(len(whole), dtype=bool)
        self._fits = np.zeros(len(whole), dtype=bool)
        self._num_seen = 0
        self._smallest: list[tuple[Floats, Space]] = []  # bytes of each
        self._fitting: list[tuple[Ints, ClosedForm, Space]] = []  # numbers in the whole space

    def look(self, *, is_all: bool = False, ends_s: float = float("inf"), until_s: float = 0.0) -> bool:
        """Look at those that are left, the least bound first, until the next is behind the best step and `until_s`; did the
        clock not end it?"""
        least_s, is_left = self._bounds.least_s, self._is_left
        limit_s = (
            np.inf if is_all and ends_s == np.inf else FIRST * float(least_s[is_left].min(initial=np.inf))
        )
        if self.num_fitting >= ENOUGH:
            limit_s = min(limit_s, max(BEHIND * self.best_s, until_s))
        while is_left.any():
            own = np.flatnonzero(is_left & (least_s <= limit_s))
            is_left[own] = False
            self.look_at(own)
            next_s = float(least_s[is_left].min(initial=np.inf))
            is_enough = self.num_fitting >= ENOUGH and not is_all
            if is_enough and next_s > max(BEHIND * self.best_s, until_s):
                break
            if self.num_fitting and is_left.any() and time.perf_counter() >= ends_s:
                return False
            limit_s = max(FURTHER * limit_s, FIRST * next_s)
            if is_enough:
                limit_s = min(limit_s, max(BEHIND * self.best_s, until_s))
        return True

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
            self._fits[numbers[rows]] = True
            self._fitting.append((numbers[rows], form, chosen))
            self.num_fitting += len(rows)
            self.best_s = min(self.best_s, float(form.step_s.min(initial=np.inf)))

    def contenders(self, *, is_complete: bool) -> Contenders:
        """What was found so far."""
        whole, is_left, (least_s, even_s) = self._whole, self._is_left, self._bounds
        uneven = np.flatnonzero(~self._fits & (even_s < self.best_s) & (whole.pp > 1))
        uneven = uneven[np.argsort(even_s[uneven], kind="stable")]
        skipped_s = np.repeat(least_s[is_left], whole.num_kinds[is_left])
        return Contenders(
            *self._joined(), skipped_s, whole.taken(uneven), even_s[uneven], self._sources, is_complete, self
        )

    def _joined(self) -> tuple[Space, ClosedForm, int, Space]:
        """What fits, in the order of the whole space, and its form; how many do not fit, and the smallest of all."""
        needed = np.concatenate([each for each, _ in self._smallest])
        least = np.argsort(needed, kind="stable")[:NUM_KEPT]
        nearest = Space.joined([each for _, each in self._smallest]).taken(least)
        numbers = np.concatenate([np.empty(0, dtype=np.int64), *(own for own, _, _ in self._fitting)])
        order = np.argsort(numbers, kind="stable")
        form = ClosedForm.joined([form for _, form, _ in self._fitting]).taken(order)
        spaces = [space for _, _, space in self._fitting]
        space = Space.joined(spaces).taken(order) if spaces else nearest.taken(order)
        self._smallest = [(needed[least], nearest)]
        if spaces:  # nothing is held twice, should the look go on
            self._fitting = [(numbers[order], form, space)]
        return space, form, self._num_seen - len(numbers), nearest
