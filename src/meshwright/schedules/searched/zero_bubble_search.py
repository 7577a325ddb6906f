"""Searched zero-bubble orders for any times of stages and any memory: rules, then annealing, judged by exact times.

Memory is counted as `searched_pipeline` says.

Source of the problem and of the idea of greedy rules under a memory limit: Qi et al., Zero Bubble Pipeline Parallelism,
arXiv 2401.10241; the V shape: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362. The rules
and the annealing here are ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.schedules.order import Orders, registered
from meshwright.schedules.searched.pipeline import (
    Codes,
    Numbers,
    Pipeline,
    codes_of,
    evaluate_codes,
    peaks_of,
    pipeline_of,
)
from meshwright.schedules.searched.stage_times import StageTimes, span_bound_s
from meshwright.specs.error import ScheduleError, SpecError

# Published orders to start from, too, where they fit the cap; they know the pattern that is best for equal stages.
PUBLISHED = ("zb_h1", "zb_h2", "zbv", "v_half", "v_min", "v_1f1b")
# How much is tried at effort 1, in rows (computes of an iteration): a rule sets about ten million rows a second, annealing
# evaluates about a hundred million. Chosen so that a search takes a few seconds.
RULE_ROWS, TUNE_ROWS, ANNEAL_ROWS = 6_000_000, 8_000_000, 120_000_000
LARGE_ROWS = 30_000  # above this no published order is made, and one order is tuned: seconds count
MIN_RULES, MAX_TRIALS, MAX_STEPS = 8, 10_000, 400_000
NUM_TUNED, NUM_ANNEALED = 2, 2  # of the best so far that are tuned, then annealed
# Leads that are tried, in microbatches that fill the pipe; inf: memory alone limits.
LEAD_SCALES = (1.0, 1.5, 2.0, math.inf, 0.75, 0.5)
HOT, COLD = 0.3, 0.02  # first and last temperature of the annealing, in mean operations
# Weights of span, device time and mean end of devices: the last two only lead through plateaus of the first.
SPAN_FIRST = (1.0, 0.02, 0.02)
DEVICE_TIME = (1.0, 0.5, 0.0)  # afterwards: a shorter device time of an order that is as fast
DEVICE_WEIGHT = 0.02


def search_orders(
    times: StageTimes,
    num_microbatches: int,
    cap: float | Sequence[float],
    *,
    num_chunks: int = 1,
    effort: float = 1.0,
    seed: int = 0,
) -> Orders:
    """The fastest order that we find: smallest span, of those smallest device time, within the memory cap.

    Args:
        times: of every stage by path; with two chunks a device stages d and 2p-1-d are on device d (`StageTimes.folded`).
        num_microbatches: of one iteration.
        cap: most activations of full stages that a device keeps, for all or one number a device.
        num_chunks: 1, or 2 for the V shape.
        effort: 1 is about two seconds of search on one core beside the rules; the result depends on it, not on the clock.
        seed: of the annealing; the same arguments give the same order.

    Raises:
        SpecError: the counts, the stages or the cap cannot be.
    """
    if not effort > 0:
        raise SpecError(f"effort {effort}", allowed="more than 0")
    pipeline = pipeline_of(times, num_microbatches, cap, num_chunks)
    starts = sorted(_constructed(pipeline, effort, seed), key=lambda found: found.key)
    best = starts[0]
    for turn, found in enumerate(starts[:NUM_ANNEALED]):
        best = min(
            best, _annealed(pipeline, found, effort, seed + turn, SPAN_FIRST), key=lambda found: found.key
        )
    best = min(best, _annealed(pipeline, best, effort, seed, DEVICE_TIME), key=lambda found: found.key)
    return pipeline.orders(best.codes)


@dataclass(frozen=True)
class Found:
    """An order that was found: its operations, span and device time."""

    codes: Codes
    span_s: float
    device_time_s: float

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better; rounded, so that sums in another order do not decide."""
        return float(f"{self.span_s:.10g}"), float(f"{self.device_time_s:.10g}")


def _constructed(pipeline: Pipeline, effort: float, seed: int) -> list[Found]:
    """Orders by rules: a few settings alike on all devices, then the best of them tuned a device at a time."""
    from meshwright.schedules.searched.zero_bubble_rules import construct, tune

    num_devices, result = pipeline.num_devices, np.zeros(2)
    most = max(MIN_RULES, int(RULE_ROWS * effort / pipeline.num_rows))
    found = []
    for lead, rule in itertools.islice(_settings(pipeline), most):
        codes, rules = pipeline.empty_order(), np.tile(rule, (num_devices, 1))
        if construct(*pipeline.arrays, lead, rules, codes, result) == 0:
            found.append((Found(codes, float(result[0]), float(result[1])), lead, rules))
    published = list(_published(pipeline))
    if not found:
        return [_one_by_one(pipeline), *published]
    found.sort(key=lambda entry: entry[0].key)
    trials = min(MAX_TRIALS, int(TUNE_ROWS * effort / pipeline.num_rows))
    result_of = [*published, *(entry[0] for entry in found)]
    if any(_is_done(pipeline, entry) for entry in result_of) or not trials:
        return result_of
    num_tuned = NUM_TUNED if pipeline.num_rows <= LARGE_ROWS else 1
    for turn, (_, lead, rules) in enumerate(found[:num_tuned]):
        codes = pipeline.empty_order()
        tune(*pipeline.arrays, lead, rules, DEVICE_WEIGHT, trials, seed + turn, codes, result)
        result_of.append(Found(codes, float(result[0]), float(result[1])))
    return result_of


def _settings(pipeline: Pipeline) -> Iterator[tuple[Codes, Numbers]]:
    """Leads and rules (see `choose`), the most useful first.

    A stage keeps the pipe full if as many microbatches are under way as the way to the last stage and back takes
    periods; leads are multiples of that.
    """
    round_trips = _round_trips(pipeline)
    mean_s = float(pipeline.durations.mean())
    for fill, full_first, patience in itertools.product((0.0, 0.5, 1.0), (0.0, 1.0), (0.5, 0.0)):
        for forward_first, scale in itertools.product((1.0, 0.0), LEAD_SCALES):
            lead = [math.ceil(max(1, min(pipeline.num_microbatches, scale * x - 1e-9))) for x in round_trips]
            rule = np.array([forward_first, fill, full_first, patience * mean_s])
            yield np.array(lead, dtype=np.int32), rule


def _round_trips(pipeline: Pipeline) -> list[float]:
    """Periods (the largest work of a device) from the start of a stage's F to the end of its I, by stage."""
    times, latency = pipeline.times, pipeline.latency.tolist()
    work = pipeline.durations.reshape(-1, 3).sum(axis=1)
    period_s = float(work[pipeline.stages_of].sum(axis=1).max())
    trips, beyond_s = [], 0.0
    for stage in reversed(range(times.num_stages)):
        beyond_s += times.forward_s[stage] + times.input_s[stage]
        trips.append(beyond_s / period_s)
        beyond_s += 2 * latency[stage]
    return trips[::-1]


def _one_by_one(pipeline: Pipeline) -> Found:
    """Each microbatch alone: legal under any cap of at least one full stage."""
    visits = [[3 * s for s in row] + [op for s in reversed(row) for op in (3 * s + 1, 3 * s + 2)]
              for row in pipeline.stages_of.tolist()]  # fmt: skip
    codes = np.array([visit * pipeline.num_microbatches for visit in visits], dtype=np.int32)
    found = _judged(pipeline, codes)
    assert found is not None, "one microbatch at a time always runs"
    return found


def _judged(pipeline: Pipeline, codes: Codes) -> Found | None:
    """The order with its exact times; None if it can never run."""
    exact = evaluate_codes(pipeline, codes)
    return None if exact is None else Found(codes, exact.span_s, exact.device_time_s)


def _published(pipeline: Pipeline) -> Iterator[Found]:
    """Fixed orders of this shape and these counts that keep within the cap."""
    p, m, v = pipeline.num_devices, pipeline.num_microbatches, pipeline.num_chunks
    for name in PUBLISHED if pipeline.num_rows <= LARGE_ROWS else ():
        fixed = registered().get(name)
        if fixed is None or fixed.num_chunks != v:
            continue
        try:
            codes = codes_of(pipeline, fixed.orders(p, m, v), in_turn=False)
        except ScheduleError:  # it takes other counts
            continue
        fits = all(
            peak * v <= slots for peak, slots in zip(peaks_of(pipeline, codes), pipeline.slots, strict=True)
        )
        found = _judged(pipeline, codes) if fits else None
        if found is not None:
            yield found


def _annealed(
    pipeline: Pipeline, start: Found, effort: float, seed: int, weights: tuple[float, float, float]
) -> Found:
    """The best order near one, by random moves on critical chains; `start` where it cannot be better, or is too large."""
    from meshwright.schedules.searched.zero_bubble_kernel import anneal

    steps = min(MAX_STEPS, int(ANNEAL_ROWS * effort / pipeline.num_rows))
    if _is_done(pipeline, start, weights) or steps < pipeline.num_rows:
        return start
    best, result = pipeline.empty_order(), np.zeros(3)
    mean_s = float(pipeline.durations.mean())
    durations, latency, device_of, _, slots = pipeline.arrays
    anneal(
        start.codes.copy(), durations, latency, device_of, slots, np.array(weights), HOT * mean_s, COLD * mean_s, steps,
        seed, best, result,
    )  # fmt: skip
    return Found(best, float(result[0]), float(result[1]))


def _is_done(pipeline: Pipeline, found: Found, weights: tuple[float, float, float] | None = None) -> bool:
    """Whether what the weights ask for is at its lower bound."""
    work = pipeline.durations.reshape(-1, 3).sum(axis=1)[pipeline.stages_of].sum(axis=1)
    device_time = found.device_time_s <= float(work.max()) * pipeline.num_microbatches * (1 + 1e-9)
    bound_s = span_bound_s(pipeline.times, pipeline.num_microbatches, pipeline.num_chunks)
    span = found.span_s <= bound_s * (1 + 1e-9)
    return span if weights == SPAN_FIRST else device_time if weights == DEVICE_TIME else span and device_time
