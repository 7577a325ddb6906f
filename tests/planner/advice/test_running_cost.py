"""Running cost: dollars and energy are rates times time, and unknown where one device's rate is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.planner.advice.running_cost import cost_assumptions, power_w, running_cost, with_rates
from meshwright.specs import Cluster
from meshwright.specs.error import PlanError

H100 = Cluster("2x8xH100")


def test_dollars_and_energy_are_rates_times_time() -> None:
    cluster = with_rates(H100, price_per_hour_usd=2.5, power_w=500)
    cost = running_cost(cluster, step_s=3.6, tokens_per_step=1e6)
    # a billion tokens take 3600 s: one hour of 16 devices
    assert cost.usd_per_billion_tokens == pytest.approx(16 * 2.5)
    assert cost.joules_per_billion_tokens == pytest.approx(16 * 500 * 3600)
    assert cost.kwh_per_billion_tokens == pytest.approx(8.0)


def test_what_nobody_said_is_not_known() -> None:
    cost = running_cost(H100, 1.0, 1e6)
    assert cost.usd_per_billion_tokens is None
    assert cost.kwh_per_billion_tokens == pytest.approx(16 * 700 * 1000 / 3.6e6)
    unsaid = replace(H100, devices=tuple(replace(device, power_w=None) for device in H100.devices))
    assert running_cost(unsaid, 1.0, 1e6).kwh_per_billion_tokens is None and not cost_assumptions(unsaid)


def test_one_device_without_a_rate_leaves_the_whole_unknown() -> None:
    first, *rest = H100.devices
    assert power_w(replace(H100, devices=(replace(first, power_w=None), *rest))) is None
    mixed = replace(H100, devices=(replace(first, power_w=100.0), *rest))
    assert power_w(mixed) == 100 + 15 * 700
    assert power_w(with_rates(mixed, power_w=10)) == 160


def test_given_rates_go_before_the_devices_own_and_only_they_change() -> None:
    cluster = with_rates(H100, power_w=350)
    assert power_w(cluster) == 16 * 350 and cluster.levels == H100.levels
    assert with_rates(H100) is H100
    assert "350 W" in cost_assumptions(cluster)[0]


@pytest.mark.parametrize("rates", [{"price_per_hour_usd": -1.0}, {"power_w": float("inf")}])
def test_rates_that_cannot_be_are_refused(rates: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="finite number from 0"):
        with_rates(H100, **rates)
