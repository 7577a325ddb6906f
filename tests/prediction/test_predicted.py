"""One plan on virtual time: intervals hold what they promise, and numbers are those of the trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.planner.space_case import MODEL, WORKLOAD, cluster

from meshwright import api
from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.pricing import Pricing
from meshwright.ir.judge import metrics
from meshwright.planner import Predicted, predict
from meshwright.specs import ClusterSpec, Plan, Workload


@dataclass(frozen=True)
class UncertainCosts:
    """Forward and backward with different uncertainty and basis, both times a factor."""

    forward: float = 1.0
    backward: float = 1.0

    def cost(self, work: Any, device: Any = None) -> Cost:
        if work.name in ("F", "R"):
            return Cost(0.1 * self.forward, uncertainty=0.1, basis="interpolated")
        return Cost(0.2 * self.backward, uncertainty=0.3) if work.name == "B" else Cost()


FREE = FixedCosts({})


class Costs:
    """Computes by one model; messages are free."""

    def __init__(self, computes: Any) -> None:
        self.cost, self.exchange_cost, self.flows = computes.cost, FREE.exchange_cost, FREE.flows


def predicted(plan: Plan, on: ClusterSpec, computes: Any) -> Predicted:
    costs: Any = Costs(computes)
    return predict(plan, on, pricing=Pricing(costs, ()))


def candidate(computes: Any, **choices: Any) -> Predicted:
    plan = Plan.of(MODEL, cluster(), WORKLOAD, **{"pp": 2, "dp": 1, **choices})
    return predicted(plan, cluster(), computes)


def test_numbers_are_those_of_the_trace() -> None:
    found = candidate(UncertainCosts())
    assert found.step.value == metrics.period_s(found.trace()) == pytest.approx((8 + 1) * 0.3)
    assert found.tokens_per_s == pytest.approx(WORKLOAD.tokens_per_step / found.step.value)
    assert found.bubble == metrics.bubble(found.trace()) == pytest.approx(1 / 9)
    assert 0 < found.peak_bytes <= found.bound_bytes
    assert found.trace().metadata["step"]["low"] == found.step.low
    assert found.trace().digest == found.program.digest()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b"])
def test_the_interval_holds_every_cost_within_its_own(schedule: str) -> None:
    said = candidate(UncertainCosts(), schedule=schedule).step
    rounding = 1e-12 * said.value
    for forward in (0.9, 1.0, 1.1):
        for backward in (0.7, 1.3):
            step = candidate(UncertainCosts(forward, backward), schedule=schedule).step.value
            assert said.low - rounding <= step <= said.high + rounding
    assert said.low == pytest.approx(candidate(UncertainCosts(0.9, 0.7), schedule=schedule).step.value)
    assert said.high == pytest.approx(candidate(UncertainCosts(1.1, 1.3), schedule=schedule).step.value)


def test_the_basis_is_the_weakest_of_what_takes_time() -> None:
    assert candidate(UncertainCosts()).step.basis == "interpolated"
    assert candidate(UncertainCosts(forward=0.0)).step.basis == "measured here"


def test_few_devices_have_lists_of_their_own_and_many_do_not() -> None:
    assert candidate(UncertainCosts(), pp=1, dp=2).program.num_lists == 2
    many = cluster(64)
    plan = Plan.of(MODEL, many, Workload(64, 64), pp=1, dp=64)
    assert predicted(plan, many, UncertainCosts()).program.num_lists == 1


def test_words_for_a_plan() -> None:
    text = candidate(UncertainCosts(), recompute="full", microbatch_size=4).description
    assert text == "pp=2 dp=1 1f1b microbatch 4 recompute"


def test_what_was_forgotten_is_made_again_and_its_results_stay() -> None:
    found = candidate(UncertainCosts())
    step, peak, made = found.step, found.peak_bytes, found.made
    found.forget()
    assert found.step is step and found.peak_bytes == peak
    assert found.made is not made and found.program.digest() == made.wiring.program.digest()


def test_nothing_is_lowered_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was simulated is not lowered, wired or priced again by whoever simulates it next."""
    plan = Plan.of(MODEL, cluster(), WORKLOAD, pp=2, dp=1)
    found = predict(plan, cluster())
    assert not {"made", "prices"} & vars(found).keys()
    step, made = found.step, found.made
    trace = api.simulate(found)
    assert trace.program is made.wiring.program and trace.metadata["step"]["value"] == step.value


def test_less_memory_than_a_device_has_may_be_asked_for() -> None:
    found = candidate(UncertainCosts())
    assert found.rejected() is None
    missed = found.rejected(int(found.bound_bytes) - 1)
    assert missed is not None and missed.available_bytes == int(found.bound_bytes) - 1
