"""Tests of costs/fixed_costs.py: textbook times by name and share, latency only between devices."""

import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.table import Exchange, Work
from meshwright.specs.error import SpecError


def test_times_by_name_and_share():
    costs = FixedCosts.from_times(1.0, 2.0, 3.0, 0.5)
    seconds = {name: costs.cost(Work(name, share=0.5)).seconds for name in ("F", "I", "W", "B", "R", "STEP")}
    assert seconds == {"F": 0.5, "I": 1.0, "W": 1.5, "B": 2.5, "R": 0.5, "STEP": 0.0}


def test_latency_occupies_nothing_and_is_only_between_devices():
    costs = FixedCosts.from_times(1.0, 1.0, 1.0, 0.1)
    hop = Exchange(("pp",), (0, 1))
    cost = costs.exchange_cost(hop, 1e9, (0, 1))
    assert (cost.seconds, cost.latency_s, cost.compute_share) == (0.0, 0.1, 0.0)
    assert costs.exchange_cost(hop, 1e9, (1, 1)).latency_s == 0.0
    assert costs.flows(hop, 1e9, (0, 1)) == ()


def test_negative_times_are_refused():
    with pytest.raises(SpecError, match="I is -1"):
        FixedCosts.from_times(1.0, -1.0, 1.0)
    with pytest.raises(SpecError, match="latency"):
        FixedCosts.from_times(1.0, 1.0, 1.0, float("nan"))
