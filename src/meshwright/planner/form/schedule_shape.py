"""ScheduleShape: what a schedule of any kind makes wait and keep, found by running its order once on equal stages.

1F1B and interleaved 1F1B have closed forms of their own; every other schedule of the catalog is asked for its shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.table import Microbatch
from meshwright.ir.timing.replay import replay, wire
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.prediction.memory_estimate import in_flight
from meshwright.schedules.order import registered
from meshwright.simulator.pricing import price

Floats = NDArray[np.float64]
# Behind so many microbatches a device a schedule is in its steady state: what waits and what is kept grows no more.
STEADY_MICROBATCHES = 3
MOST_DEVICES = 4  # of a pipeline that is run; what a longer one waits and keeps grows as it does
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


def schedule_shape(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> ScheduleShape:
    """The shape; from as few microbatches and devices as show it.

    Raises ScheduleError where the schedule's function returns something that is no order.
    """
    times = max(1, num_devices // MOST_DEVICES)
    if num_devices % times:
        times = 1
    p, m = num_devices // times, max(1, num_microbatches // times)
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
def _shape(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> ScheduleShape:
    """The shape of exactly these counts."""
    chosen, counts = registered()[name], [Microbatch(1, 1.0 / num_microbatches)] * num_microbatches
    orders = chosen.orders(num_devices, num_microbatches, num_chunks)
    program = with_shares(Transfers()(program_of_orders(orders, microbatches=counts)), num_chunks)
    wiring, spans = wire(program), []
    for latency in (0.0, LATENCY):
        costs = FixedCosts.from_times(FORWARD, INPUT, WEIGHT, latency)
        prices = price(wiring, costs, costs, None, has_demands=False)
        times = replay(wiring, prices.seconds, prices.latency_s, prices.cost_of_row, host="asynchronous")
        spans.append(metrics.span_s(Trace(program, *times, engine="max-plus")))
    span, shown = spans[0], (spans[1] - spans[0]) / (LATENCY * num_microbatches)
    saved, pending = np.zeros(num_devices * num_chunks), np.zeros(num_devices * num_chunks)
    for tops in in_flight(chosen, num_devices, num_microbatches, num_chunks):
        top = max(tops, key=lambda each: sum(each.saved))
        saved[list(top.stages)], pending[list(top.stages)] = top.saved, top.pending
    return ScheduleShape(span / (FORWARD + INPUT + WEIGHT) - num_microbatches, shown, saved, pending)


@lru_cache(maxsize=512)
def stage_devices(name: str, num_devices: int, num_chunks: int) -> tuple[int, ...]:
    """The device of every stage: a schedule's placement is in its lists."""
    found: dict[int, int] = {}
    for device, row in enumerate(registered()[name].orders(num_devices, 1, num_chunks)):
        found |= dict.fromkeys((compute.stage for compute in row), device)
    return tuple(found[stage] for stage in range(len(found)))
