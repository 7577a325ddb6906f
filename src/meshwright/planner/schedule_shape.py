"""ScheduleShape: what a schedule of any kind makes wait and keep, found by running its order once on equal stages.

1F1B and interleaved 1F1B have closed forms of their own; every other schedule of the catalog is asked for its shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir import metrics
from meshwright.ir.replay import replay, wire
from meshwright.ir.table import Microbatch
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.transfer import Transfers
from meshwright.planner.memory_estimate import in_flight
from meshwright.schedules.order import registered
from meshwright.simulator.pricing import price

Floats = NDArray[np.float64]
# Behind so many microbatches a device a schedule is in its steady state: what waits and what is kept grows no more.
STEADY_MICROBATCHES = 2
MOST_DEVICES = 16  # of a pipeline that is run; what a longer one waits and keeps grows as it does
FORWARD, INPUT, WEIGHT = 1.0, 1.0, 1.0  # seconds of a full stage; a backward costs what its two products cost


class ScheduleShape(NamedTuple):
    """Of a pipeline with equal stages.

    Attributes:
        idle: what a step takes beyond the computes of a device, in passes of one microbatch through one device.
        saved: microbatches in flight by stage at the fullest moment of its device; `pending` of them between I and W.
    """

    idle: float
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
    few = min(m, STEADY_MICROBATCHES * p)
    shape = _shape(name, p, num_chunks, few)
    # where all microbatches are in flight at once, more would be
    saved = np.where(shape.saved == few, num_microbatches, shape.saved * times)
    pending = np.where(shape.pending == few, num_microbatches, shape.pending * times)
    # of the devices between two that were run, the later one: never more than there are
    place = np.minimum(-(-np.arange(num_devices) // times), p - 1)
    place = (np.arange(num_chunks)[:, None] * p + place).reshape(-1)
    idle = shape.idle * (num_devices - 1) / max(1, p - 1)
    return ScheduleShape(
        idle, np.minimum(saved, num_microbatches)[place], np.minimum(pending, num_microbatches)[place]
    )


@lru_cache(maxsize=512)
def _shape(name: str, num_devices: int, num_chunks: int, num_microbatches: int) -> ScheduleShape:
    """The shape of exactly these counts."""
    chosen, counts = registered()[name], [Microbatch(1, 1.0 / num_microbatches)] * num_microbatches
    orders = chosen.orders(num_devices, num_microbatches, num_chunks)
    program = with_shares(Transfers()(program_of_orders(orders, microbatches=counts)), num_chunks)
    wiring, costs = wire(program), FixedCosts.from_times(FORWARD, INPUT, WEIGHT)
    prices = price(wiring, costs, costs, None, has_demands=False)
    times = replay(wiring, prices.seconds, prices.latency_s, prices.cost_of_row, host="asynchronous")
    span = metrics.span_s(Trace(program, *times, engine="max-plus"))
    saved, pending = np.zeros(num_devices * num_chunks), np.zeros(num_devices * num_chunks)
    for tops in in_flight(chosen, num_devices, num_microbatches, num_chunks):
        top = max(tops, key=lambda each: sum(each.saved))
        saved[list(top.stages)], pending[list(top.stages)] = top.saved, top.pending
    return ScheduleShape(span / (FORWARD + INPUT + WEIGHT) - num_microbatches, saved, pending)
