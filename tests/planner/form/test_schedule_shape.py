"""The shape of a schedule: its clock of equal stages is the law's replay of the program, for every schedule there is."""

from __future__ import annotations

import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.table import Microbatch
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.planner.form.schedule_shape import equal_span_s
from meshwright.planner.space.axis import ranked_schedules
from meshwright.schedules.order import Compute, Orders, registered
from meshwright.simulator.pricing import price
from meshwright.specs.error import ScheduleError


def replayed_s(orders: Orders, num_chunks: int, num_microbatches: int, latency_s: float) -> float:
    counts = [Microbatch(1, 1.0 / num_microbatches)] * num_microbatches
    wiring = wire(with_shares(Transfers()(program_of_orders(orders, microbatches=counts)), num_chunks))
    costs = FixedCosts.from_times(1.0, 1.0, 1.0, latency_s)
    prices = price(wiring, costs, costs, None, has_demands=False)
    times = replay(wiring, prices.seconds, prices.latency_s, prices.cost_of_row, host="asynchronous")
    return metrics.span_s(Trace(wiring.program, *times, engine="max-plus"))


@pytest.mark.parametrize("name", ranked_schedules())
def test_the_clock_of_equal_stages_is_the_replay(name: str) -> None:
    chosen, num_compared = registered()[name], 0
    for p in (1, 2, 3, 4, 6):
        for v in (chosen.num_chunks, 4):
            for m in (1, 2, 5, 12):
                if chosen.takes_devices(p) and chosen.takes_chunks(v):
                    orders = chosen.orders(p, m, v)
                    for latency_s in (0.0, 0.03, 0.7):
                        found = equal_span_s(orders, v, latency_s)
                        assert found == pytest.approx(replayed_s(orders, v, m, latency_s), rel=1e-12)
                        num_compared += 1
    assert num_compared >= 24


def test_a_circle_is_refused() -> None:
    orders = [[Compute("B", 0, 0), Compute("F", 0, 0)], [Compute("F", 1, 0), Compute("B", 1, 0)]]
    with pytest.raises(ScheduleError, match="in a circle"):
        equal_span_s(orders, 1, 0.0)
