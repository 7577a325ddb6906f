"""ScheduleShape: what a schedule of any kind makes wait and keep, found by running its order once on equal stages.

1F1B and interleaved 1F1B have closed forms of their own; every other schedule of the catalog is asked for its shape.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules.in_flight import in_flight
from meshwright.schedules.order import Orders, registered
from meshwright.specs.error import ScheduleError

Floats = NDArray[np.float64]
# Behind so many microbatches a device a schedule is in its steady state: what waits and what is kept grows no more.
STEADY_MICROBATCHES = 3
# Of a pipeline that is run, or as few more as divide the longer one, which waits and keeps so many times what it does.
FEW_DEVICES = 4
LATENCY = 0.03  # of a message, small against a pass: what it adds to the span is what is not hidden
# Moments that may be a device's fullest: most microbatches in flight, most of these and what waits for W, most of the latter.
NUM_MOMENTS = 3


class PassRatios(NamedTuple):
    """Of a stage the seconds of I and W, in seconds of F; a backward in one takes both."""

    input: float = 1.0
    weight: float = 1.0


EVEN = PassRatios()


class ScheduleShape(NamedTuple):
    """Of a pipeline with equal stages.

    Attributes:
        idle: what a step takes beyond the computes of a device, in passes of one microbatch through one device.
        shown: messages of one microbatch that nothing hides.
        saved: microbatches in flight by stage, at each of the `NUM_MOMENTS` moments of its device; `pending` of them between
            I and W.
    """

    idle: float
    shown: float
    saved: Floats
    pending: Floats


@lru_cache(maxsize=4096)
def schedule_shape(
    name: str, num_devices: int, num_chunks: int, num_microbatches: int, times: PassRatios = EVEN
) -> ScheduleShape:
    """The shape; from as few microbatches as show it, and what waits from as few devices.

    Raises ScheduleError where the schedule's function returns something that is no order.
    """
    p = _few_devices(name, num_devices)
    longer = num_devices // p
    m = max(1, num_microbatches // longer)
    few = next((count * p for count in range(STEADY_MICROBATCHES, 0, -1) if count * p <= m), m)
    waited = _waited(name, p, num_chunks, few, times)
    idle = waited.idle * (num_devices - 1) / max(1, p - 1)
    # of passes that are not even every further microbatch may wait, where a backward has halves
    if few == STEADY_MICROBATCHES * p and registered()[name].splits_backward:
        earlier = _waited(name, p, num_chunks, few - p, times)
        idle += max(0.0, waited.idle - earlier.idle) / p * (num_microbatches - few * longer)
    steady = STEADY_MICROBATCHES * num_devices
    moments = _moments(name, num_devices, num_chunks, min(steady, num_microbatches))
    # where by then all microbatches are in flight at once, more would be
    saved, pending = (np.where(each < steady, each, num_microbatches) for each in moments)
    return ScheduleShape(idle, waited.shown, saved, pending)


@lru_cache(maxsize=512)
def _few_devices(name: str, num_devices: int) -> int:
    """The fewest from `FEW_DEVICES` on that divide the pipeline, and that the schedule takes."""
    takes = registered()[name].takes_devices
    every = (p for p in range(FEW_DEVICES, num_devices) if num_devices % p == 0 and takes(p))
    return next(every, num_devices)


class _Idle(NamedTuple):
    """`idle` and `shown` of a shape."""

    idle: float
    shown: float


@lru_cache(maxsize=4096)
def _waited(name: str, num_devices: int, num_chunks: int, num_microbatches: int, times: PassRatios) -> _Idle:
    """Of exactly these counts."""
    orders = registered()[name].orders(num_devices, num_microbatches, num_chunks)
    span, late = (equal_span_s(orders, num_chunks, latency, times) for latency in (0.0, LATENCY))
    shown = (late - span) / (LATENCY * num_microbatches)
    return _Idle(span / (1.0 + sum(times)) - num_microbatches, shown)


@lru_cache(maxsize=4096)
def gathered_share(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> float:
    """Of a device's computes the share that begins a run on one stage: what is gathered for the first serves them all."""
    steady = STEADY_MICROBATCHES * num_devices
    runs = _num_runs(name, num_devices, num_chunks, min(steady, num_microbatches))
    if num_microbatches > steady:
        earlier = _num_runs(name, num_devices, num_chunks, steady - num_devices)
        runs += (runs - earlier) / num_devices * (num_microbatches - steady)
    return min(1.0, runs / (2 * num_chunks * num_microbatches))


@lru_cache(maxsize=512)
def _num_runs(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> float:
    """Runs of computes of one stage that follow each other, W aside, of a device on average."""
    found = 0
    for row in registered()[name].orders(num_devices, num_microbatches, num_chunks):
        stages = [compute.stage for compute in row if compute.name != "W"]
        found += sum(1 for _ in groupby(stages))
    return found / num_devices


@lru_cache(maxsize=512)
def _moments(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> tuple[Floats, Floats]:
    """`saved` and `pending` of exactly these counts, [moments, stages]."""
    saved, pending = np.zeros((2, NUM_MOMENTS, num_devices * num_chunks))
    for tops in in_flight(registered()[name], num_devices, num_microbatches, num_chunks):
        sums = {top: (sum(top.saved), sum(top.pending)) for top in tops}
        fullest = (
            max(tops, key=lambda top: sums[top]),
            max(tops, key=lambda top: sum(sums[top])),
            max(tops, key=lambda top: sums[top][::-1]),
        )
        for moment, top in enumerate(fullest):
            saved[moment, list(top.stages)], pending[moment, list(top.stages)] = top.saved, top.pending
    return saved, pending


def equal_span_s(orders: Orders, num_chunks: int, latency_s: float, times: PassRatios = EVEN) -> float:
    """What the law's replay says of equal stages: each compute behind the one before it on its device, and `latency_s`
    behind what another device made for it. Raises ScheduleError where devices wait for each other in a circle."""
    share = 1.0 / num_chunks
    seconds = {"F": share, "I": times.input * share, "W": times.weight * share, "B": sum(times) * share}
    num_stages = 1 + max(compute.stage for row in orders for compute in row)
    # (is it of a forward, stage, microbatch): when it was made, by which device
    made: dict[tuple[bool, int, int], tuple[float, int]] = {}
    rows, free = [deque(row) for row in orders], [0.0] * len(orders)
    while any(rows):
        left = sum(map(len, rows))
        for device, row in enumerate(rows):
            while row:
                name, stage, microbatch = row[0]
                is_forward, is_last = name == "F", stage + 1 == num_stages
                begin = free[device]
                if name != "W" and (stage or not is_forward):
                    before = (True, stage - is_forward) if is_forward or is_last else (False, stage + 1)
                    source = made.get((*before, microbatch))
                    if source is None:
                        break
                    begin = max(begin, source[0] + latency_s * (source[1] != device))
                free[device] = begin + seconds[name]
                if name != "W":
                    made[is_forward, stage, microbatch] = (free[device], device)
                row.popleft()
        if sum(map(len, rows)) == left:
            raise ScheduleError("the devices of this order wait for each other in a circle")
    return max(free)


@lru_cache(maxsize=512)
def stage_devices(name: str, num_devices: int, num_chunks: int) -> tuple[int, ...]:
    """The device of every stage: a schedule's placement is in its lists."""
    found: dict[int, int] = {}
    for device, row in enumerate(registered()[name].orders(num_devices, 1, num_chunks)):
        found |= dict.fromkeys((compute.stage for compute in row), device)
    return tuple(found[stage] for stage in range(len(found)))
