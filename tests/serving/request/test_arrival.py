"""Arrival processes have the rate and the variation that they say."""

from __future__ import annotations

from statistics import mean, pstdev

import pytest

from meshwright.serving.request.arrival import ClosedLoop, Constant, Gamma, Poisson, arriving, at_rate
from meshwright.serving.request.request import Request

REQUESTS = [Request(str(number), 5, 3, 2.0 * number) for number in range(5)]


@pytest.mark.parametrize(
    ("process", "variation"), [(Poisson(4.0), 1.0), (Gamma(4.0, 3.0), 3.0), (Constant(4.0), 0.0)]
)
def test_gaps_have_the_mean_and_the_variation_that_was_asked_for(
    process: Poisson | Gamma | Constant, variation: float
) -> None:
    """Of 20,000 gaps: the mean within 7 % (its standard error at variation 3 is 2 %), the variation within 10 %."""
    times = process.times_s(20_001)
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert times[0] == 0.0 and min(gaps) >= 0.0
    assert mean(gaps) == pytest.approx(0.25, rel=0.07)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(variation, rel=0.1, abs=1e-9)


def test_the_same_seed_gives_the_same_times_and_another_others() -> None:
    """A load is repeatable."""
    assert Poisson(2.0, 1).times_s(9) == Poisson(2.0, 1).times_s(9) != Poisson(2.0, 2).times_s(9)


def test_requests_keep_their_order_and_lengths_at_other_times() -> None:
    """Only arrivals change, and only in the copies."""
    assert [r.arrival_s for r in arriving(REQUESTS, Constant(10.0))] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert [r.arrival_s for r in at_rate(REQUESTS, 4.0)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [r.arrival_s for r in REQUESTS] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_client_sends_when_its_last_request_has_ended() -> None:
    """Two clients have two requests under way, and five in all."""
    clients = ClosedLoop(REQUESTS, 2, think_s=0.5)
    assert [(r.id, r.arrival_s) for r in clients.first()] == [("0", 0.0), ("1", 0.25)]
    later = [clients.after(end_s) for end_s in (3.0, 4.0, 4.5, 9.0)]
    assert [(r.id, r.arrival_s) if r else None for r in later] == [("2", 3.5), ("3", 4.5), ("4", 5.0), None]
