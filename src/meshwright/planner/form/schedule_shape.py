"""ScheduleShape: what a schedule of any kind makes wait and keep, found by running its order once on equal stages.

1F1B and interleaved 1F1B have closed forms of their own; every other schedule of the catalog is asked for its shape.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
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
FORWARD, INPUT, WEIGHT = 1.0, 1.0, 1.0  # seconds of a full stage; a backward costs what its two products cost


class ScheduleShape(NamedTuple):
    """Of a pipeline with equal stages.

    Attributes:
        idle: what a step takes beyond the computes of a device, in passes of one microbatch through one device.
        shown: messages of one microbatch that nothing hides.
        saved: microbatches in flight by stage at the fullest moment of its device; `pending` of them between I and W.
    """

    idle: float
    shown: float
    saved: Floats
    pending: Floats


@lru_cache(maxsize=4096)
def schedule_shape(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> ScheduleShape:
    """The shape; from as few microbatches and devices as show it.

    Raises ScheduleError where the schedule's function returns something that is no order.
    """
    p = _few_devices(name, num_devices)
    times = num_devices // p
    m = max(1, num_microbatches // times)
    few = next((times * p for times in range(STEADY_MICROBATCHES, 0, -1) if times * p <= m), m)
    is_steady = few == STEADY_MICROBATCHES * p
    shape = _shape(name, p, num_chunks, few)
    # rounding may be in the number that was found: of a longer pipeline one less is counted for each of its parts;
    # where then still all microbatches are in flight at once, more would be
    saved = np.where((shape.saved == few) & is_steady, num_microbatches, shape.saved * times - (times - 1))
    pending = np.where(
        (shape.pending == few) & is_steady, num_microbatches, shape.pending * times - (times - 1)
    )
    # of the devices between two that were run, the one that keeps less: never more than there are
    place = np.arange(num_devices) / times
    ends = (np.floor(place).astype(np.int64), np.minimum(np.ceil(place).astype(np.int64), p - 1))
    before, behind = ((np.arange(num_chunks)[:, None] * p + end).reshape(-1) for end in ends)
    kept = [np.minimum(np.minimum(each[before], each[behind]), num_microbatches) for each in (saved, pending)]
    idle = shape.idle * (num_devices - 1) / max(1, p - 1)
    return ScheduleShape(idle, shape.shown, *kept)


@lru_cache(maxsize=512)
def _few_devices(name: str, num_devices: int) -> int:
    """The fewest from `FEW_DEVICES` on that divide the pipeline, and that the schedule takes."""
    takes = registered()[name].takes_devices
    every = (p for p in range(FEW_DEVICES, num_devices) if num_devices % p == 0 and takes(p))
    return next(every, num_devices)


@lru_cache(maxsize=512)
def _shape(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> ScheduleShape:
    """The shape of exactly these counts."""
    chosen = registered()[name]
    orders = chosen.orders(num_devices, num_microbatches, num_chunks)
    span, late = (equal_span_s(orders, num_chunks, latency) for latency in (0.0, LATENCY))
    shown = (late - span) / (LATENCY * num_microbatches)
    saved, pending = np.zeros(num_devices * num_chunks), np.zeros(num_devices * num_chunks)
    for tops in in_flight(chosen, num_devices, num_microbatches, num_chunks):
        top = max(tops, key=lambda each: sum(each.saved))
        saved[list(top.stages)], pending[list(top.stages)] = top.saved, top.pending
    return ScheduleShape(span / (FORWARD + INPUT + WEIGHT) - num_microbatches, shown, saved, pending)


def equal_span_s(orders: Orders, num_chunks: int, latency_s: float) -> float:
    """What the law's replay says of equal stages: each compute behind the one before it on its device, and `latency_s`
    behind what another device made for it. Raises ScheduleError where devices wait for each other in a circle."""
    share = 1.0 / num_chunks
    seconds = {"F": FORWARD * share, "I": INPUT * share, "W": WEIGHT * share, "B": (INPUT + WEIGHT) * share}
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
