"""One plan on virtual time: intervals hold what they promise, and numbers are those of the trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.planner.space_case import MODEL, WORKLOAD, cluster

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.planner import Candidate, evaluate
from meshwright.schedules import registered
from meshwright.specs import Plan, Workload


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


def candidate(computes: Any, **choices: Any) -> Candidate:
    plan = Plan.of(MODEL, cluster(), WORKLOAD, **{"pp": 2, "dp": 1, **choices})
    found = evaluate(plan, cluster(), computes, FREE, registered()[plan.schedule])
    assert isinstance(found, Candidate)
    return found


def test_numbers_are_those_of_the_trace() -> None:
    found = candidate(UncertainCosts())
    assert found.step.value == metrics.period_s(found.trace) == pytest.approx((8 + 1) * 0.3)
    assert found.tokens_per_s == pytest.approx(WORKLOAD.tokens_per_step / found.step.value)
    assert found.bubble == metrics.bubble(found.trace) == pytest.approx(1 / 9)
    assert 0 < found.peak_bytes <= found.bound_bytes
    assert found.trace.metadata["step"]["low"] == found.step.low
    assert found.trace.digest == found.program.digest()


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
    found = evaluate(plan, many, UncertainCosts(), FREE, registered()["1f1b"])
    assert isinstance(found, Candidate) and found.program.num_lists == 1


def test_words_for_a_plan() -> None:
    text = candidate(UncertainCosts(), recompute="full", microbatch_size=4).description
    assert text == "pp=2 dp=1 1f1b microbatch 4 recompute"
