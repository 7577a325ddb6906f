"""The shape of a schedule: its clock of equal stages is the law's replay of the program, for every schedule there is."""

from __future__ import annotations

from itertools import groupby

import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.table import Microbatch
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.planner.form.schedule_shape import (
    EVEN,
    PassRatios,
    equal_span_s,
    gathered_share,
    schedule_shape,
)
from meshwright.planner.space.axis import ranked_schedules
from meshwright.schedules.in_flight import in_flight
from meshwright.schedules.order import Compute, Orders, registered
from meshwright.simulator.pricing import price
from meshwright.specs.error import ScheduleError

# Of a step; the last two wait a little with every microbatch where passes are uneven, which is not counted.
CLOSE = {**dict.fromkeys(ranked_schedules(), 0.035), "hanayo": 0.15, "v_1f1b": 0.05}


def replayed_s(
    orders: Orders, num_chunks: int, num_microbatches: int, latency_s: float, times: PassRatios = EVEN
) -> float:
    counts = [Microbatch(1, 1.0 / num_microbatches)] * num_microbatches
    wiring = wire(with_shares(Transfers()(program_of_orders(orders, microbatches=counts)), num_chunks))
    costs = FixedCosts.from_times(1.0, *times, latency_s)
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
                    for latency_s, times in ((0.0, EVEN), (0.03, PassRatios(1.6, 0.7)), (0.7, EVEN)):
                        found = equal_span_s(orders, v, latency_s, times)
                        assert found == pytest.approx(replayed_s(orders, v, m, latency_s, times), rel=1e-12)
                        num_compared += 1
    assert num_compared >= 24


@pytest.mark.parametrize("name", ranked_schedules())
@pytest.mark.parametrize("times", [EVEN, PassRatios(1.75, 0.75), PassRatios(1.25, 0.5)])
def test_what_waits_goes_on_as_in_a_longer_pipeline(name: str, times: PassRatios) -> None:
    """The shape of few devices and microbatches against the clock of all of them; 1F1B and interleaved 1F1B are not asked."""
    p, v, m = 8, registered()[name].num_chunks, 64
    span_s = equal_span_s(registered()[name].orders(p, m, v), v, 0.0, times)
    shape = schedule_shape(name, p, v, m, times)
    assert (m + shape.idle) * (1 + sum(times)) == pytest.approx(span_s, rel=CLOSE[name])


@pytest.mark.parametrize("name", ranked_schedules())
def test_what_is_kept_is_what_the_order_keeps(name: str) -> None:
    """At the fullest moment of every device, of any sizes of what is in flight and of what waits for W."""
    p, v, m = 8, registered()[name].num_chunks, 40
    shape = schedule_shape(name, p, v, m)
    for saved, pending in ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.1)):
        kept = (saved * shape.saved + pending * shape.pending).reshape(len(shape.saved), -1)
        for tops in in_flight(registered()[name], p, m, v):
            most = max(saved * sum(top.saved) + pending * sum(top.pending) for top in tops)
            found = kept[:, list(tops[0].stages)].sum(axis=1).max()
            assert found == pytest.approx(most) or (name == "hanayo" and 0.9 * most < found < most)


def test_a_gather_serves_all_computes_of_a_stage_that_follow_each_other() -> None:
    """Breadth-first: a run for each chunk, there and back, of which the last is one; 1F1B: one stage in all; interleaved: as
    many microbatches in a run as there are devices."""
    for p, v, m in ((4, 3, 8), (4, 3, 64), (8, 2, 200)):
        assert gathered_share("breadth_first", p, v, m) == pytest.approx((2 * v - 1) / (2 * v * m), rel=0.02)
        assert gathered_share("1f1b", p, 1, m) == pytest.approx(1 / (2 * m))
        exact = sum(
            len(list(groupby(compute.stage for compute in row)))
            for row in registered()["interleaved_1f1b"].orders(p, m, v)
        )
        found = gathered_share("interleaved_1f1b", p, v, m)
        assert found == pytest.approx(exact / (2 * p * v * m), rel=0.05)


def test_a_circle_is_refused() -> None:
    orders = [[Compute("B", 0, 0), Compute("F", 0, 0)], [Compute("F", 1, 0), Compute("B", 1, 0)]]
    with pytest.raises(ScheduleError, match="in a circle"):
        equal_span_s(orders, 1, 0.0)
