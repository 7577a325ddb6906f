"""Goodput: within bounds and monotone, the interval is the optimum, and a simulation of failures says the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from meshwright.planner.advice.goodput import (
    Failures,
    best_checkpointing,
    best_interval_s,
    daly_interval_s,
    duration,
    goodput,
    young_interval_s,
)
from meshwright.specs.error import PlanError

HOUR = 3600.0
failures = st.builds(
    Failures,
    st.floats(1e4, 1e10),
    st.floats(0.1, 600.0),
    st.floats(0.0, 3600.0),
)


@given(failures, st.floats(1.0, 1e6), st.integers(1, 100_000))
def test_goodput_is_a_share(failing: Failures, interval: float, devices: int) -> None:
    share = goodput(interval, failing, devices)
    assert 0 <= share <= 1
    # below what saving alone leaves; above 0 unless a segment lasts hundreds of failures
    assert share <= interval / (interval + failing.checkpoint_s) * (1 + 1e-9)
    if interval + failing.checkpoint_s + failing.restart_s < 300 * failing.job_mtbf_s(devices):
        assert share > 0


@given(failures, st.floats(1.0, 1e5), st.integers(1, 50_000), st.floats(1.01, 100.0))
def test_rarer_failures_are_never_worse(
    failing: Failures, interval: float, devices: int, times: float
) -> None:
    rarer = Failures(failing.device_mtbf_s * times, failing.checkpoint_s, failing.restart_s)
    assert goodput(interval, rarer, devices) >= goodput(interval, failing, devices) * (1 - 1e-12)
    assert goodput(interval, failing, devices) >= goodput(interval, failing, 2 * devices) * (1 - 1e-12)


@given(failures, st.integers(1, 20_000))
def test_the_interval_is_the_numeric_optimum_of_the_exact_formula(failing: Failures, devices: int) -> None:
    best = best_interval_s(failing, devices)
    high = goodput(best, failing, devices)
    near = minimize_scalar(
        lambda log: -goodput(math.exp(log), failing, devices),
        bounds=(math.log(best / 50), math.log(best * 50)),
        method="bounded",
    )
    assert high >= -near.fun * (1 - 1e-9)


@given(failures, st.integers(1, 20_000))
def test_dalys_interval_is_near_the_optimum_and_nearer_than_youngs(failing: Failures, devices: int) -> None:
    mtbf = failing.job_mtbf_s(devices)
    if failing.checkpoint_s > mtbf / 2:  # where the series is meant to hold
        return
    best, daly = best_interval_s(failing, devices), daly_interval_s(failing, devices)
    assert daly == pytest.approx(best, rel=0.005)
    assert abs(daly - best) <= abs(young_interval_s(failing, devices) - best) + 1e-9 * best


def test_the_interval_without_a_series_meets_the_one_with_it() -> None:
    # on both sides of LEAST_RATIO
    below, above = Failures(1.0001e6, 1.0, 0.0), Failures(0.9999e6, 1.0, 0.0)
    assert best_interval_s(below, 1) == pytest.approx(best_interval_s(above, 1) * 1.0001, rel=2e-6)
    assert daly_interval_s(Failures(10.0, 30.0, 0.0), 1) == 10.0  # from 2 M on it is M


def simulated_share(failing: Failures, devices: int, interval: float, segments: int, seed: int) -> float:
    """Training seconds over all seconds, event by event: draw each failure, lose the segment, restart, try again."""
    random = np.random.default_rng(seed)
    mtbf = failing.job_mtbf_s(devices)
    total = 0.0
    for _ in range(segments):
        wanted = interval + failing.checkpoint_s
        while (fails_at := random.exponential(mtbf)) < wanted:
            total += fails_at
            while (again := random.exponential(mtbf)) < failing.restart_s:
                total += again
            total += failing.restart_s
        total += wanted
    return segments * interval / total


@pytest.mark.parametrize(
    ("failing", "devices", "interval"),
    [
        (Failures(50_000 * HOUR, 60.0, 600.0), 16_384, 1100.0),
        (Failures(50_000 * HOUR, 60.0, 600.0), 16_384, 8000.0),
        (Failures(5_000 * HOUR, 120.0, 1800.0), 8_192, 700.0),
        (Failures(HOUR, 300.0, 0.0), 1, 1500.0),
    ],
)
def test_simulated_failures_agree(failing: Failures, devices: int, interval: float) -> None:
    # 40,000 segments: the standard error of the mean is below 0.6 % in all of these, the tolerance more than three
    share = simulated_share(failing, devices, interval, 40_000, seed=7)
    assert share == pytest.approx(goodput(interval, failing, devices), rel=0.02)


def test_checkpoints_fall_on_steps() -> None:
    failing = Failures(50_000 * HOUR, 60.0, 600.0)
    best = best_checkpointing(failing, 16_384, 7.0)
    assert best.interval_s == best.every_steps * 7.0
    assert abs(best.interval_s - best_interval_s(failing, 16_384)) <= 7.0
    around = (goodput(7.0 * (best.every_steps + k), failing, 16_384) for k in (-2, -1, 1, 2))
    assert best.goodput >= max(around)
    assert best_checkpointing(failing, 16_384, 1e5).every_steps == 1


def test_a_budget_takes_whole_steps_and_longer_with_failures() -> None:
    plain = duration(1_000_001, 2.0, 1e6, 8)
    assert plain.without_failures_s == plain.expected_s == 4.0 and plain.checkpointing is None
    failing = duration(10**12, 2.0, 1e6, 8192, Failures(50_000 * HOUR, 60.0, 600.0))
    assert failing.checkpointing is not None and failing.without_failures_s == 2e6
    assert failing.expected_s == pytest.approx(2e6 / failing.checkpointing.goodput)
    hopeless = duration(10**12, 2.0, 1e6, 8192, Failures(60.0, 60.0, 600.0))
    assert hopeless.expected_s == math.inf


@pytest.mark.parametrize(
    "numbers", [(0.0, 60.0, 60.0), (1e6, 0.0, 60.0), (1e6, 60.0, -1.0), (math.nan, 1.0, 1.0)]
)
def test_times_that_cannot_be_are_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(PlanError):
        Failures(*numbers)
