"""Simulating programs: quotients equal their expansions, prices by class, memory under its bound, links that are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.roofline import Roofline
from meshwright.ir import bubble, device_time_s, peak_alive, peak_bytes, span_s, verify, wire
from meshwright.lowering import Recompute, SplitBackward, lower, place
from meshwright.schedules import registered
from meshwright.simulator import price, simulate_program
from meshwright.specs import Cluster, Plan, Workload, load_model
from tests.simulator.program import SCHEDULES, training_step

COSTS = FixedCosts.from_times(1.0, 1.2, 0.9, latency_s=0.1)


@pytest.mark.parametrize(("schedule", "v"), SCHEDULES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_quotient_is_its_expansion(schedule: str, v: int, tied: bool) -> None:
    quotient = training_step(schedule, 4, 6, v, dp=3, tied=tied)
    expanded = quotient.expand("dp")
    ours, theirs = (simulate_program(p, COSTS, COSTS, iterations=2) for p in (quotient, expanded))
    for device in range(4):
        own = slice(*quotient.offsets[device : device + 2])
        for copy in range(3):
            other = slice(*expanded.offsets[3 * device + copy : 3 * device + copy + 2])
            np.testing.assert_allclose(ours.end_s[:, own], theirs.end_s[:, other], atol=1e-9)
    assert span_s(ours) == pytest.approx(span_s(theirs))
    assert bubble(ours) == pytest.approx(bubble(theirs))
    assert peak_bytes(ours) == peak_bytes(theirs)


@pytest.mark.parametrize("host", ["asynchronous", "in_order"])
@pytest.mark.parametrize(("schedule", "v"), SCHEDULES)
@pytest.mark.parametrize(
    "passes", [(), (Recompute(),), (SplitBackward(), Recompute())], ids=["plain", "r", "split r"]
)
def test_the_ledger_stays_under_the_bound(schedule: str, v: int, host: str, passes: tuple[Any, ...]) -> None:
    if schedule == "zb_h1" and len(passes) == 2:
        passes = passes[1:]
    program = training_step(schedule, 4, 8, v, dp=2, passes=passes)
    trace = simulate_program(program, COSTS, COSTS, iterations=2, host=host)
    bound = verify(program).peak_bytes[:, 0]
    for device in range(4):
        assert 0 < peak_bytes(trace, device) <= bound[device]
    assert bound.max() <= 2 * peak_bytes(trace), "a bound twice the peak helps nobody"


def test_metrics_of_a_known_pipeline() -> None:
    trace = simulate_program(
        training_step("1f1b", 4, 8), FixedCosts.from_times(1, 1, 1), FixedCosts.from_times(1, 1, 1)
    )
    assert trace.engine == "max-plus"
    assert (span_s(trace), device_time_s(trace)) == (33.0, 33.0)
    assert bubble(trace) == pytest.approx(3 / 11)
    assert peak_alive(trace) == [4.0, 3.0, 2.0, 1.0]
    zero = simulate_program(
        training_step("zb_h1", 4, 8), FixedCosts.from_times(1, 1, 1), FixedCosts.from_times(1, 1, 1)
    )
    assert span_s(zero) == 27.0


class Counting(FixedCosts):
    """Fixed costs that count how often they are asked."""

    asked = 0

    def cost(self, work: Any, device: Any = None) -> Any:
        type(self).asked += 1
        return super().cost(work, device)


def test_cost_is_asked_once_a_class() -> None:
    wiring = wire(training_step("1f1b", 4, 16, dp=2))
    prices = price(wiring, Counting({"F": 1.0, "B": 2.0}), COSTS, None)
    assert Counting.asked == 2, "16 microbatches on 4 stages are two works"
    assert len(prices.costs) < 20


def test_a_plan_on_gpus_simulates() -> None:
    model, cluster = load_model("llama-3.1-8b"), Cluster("4x8xH100")
    plan = Plan.of(model, cluster, Workload(64, 8192), pp=4, dp=8, schedule="1f1b", dtype="bfloat16")
    program = lower(plan, registered()["1f1b"])
    costs = Roofline(cluster)
    trace = simulate_program(program, costs, costs, placement=place(program, cluster), iterations=2)
    flops = plan.model.train_flops_per_token(8192) * 64 * 8192
    fastest = flops / (32 * cluster.devices[0].peak_flops_per_s("bfloat16"))
    assert span_s(trace) > fastest, "nothing runs faster than the peak of its devices"
    assert span_s(trace) < 5 * fastest
