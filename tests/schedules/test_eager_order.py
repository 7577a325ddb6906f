"""ZB-H2, ZB-V and waves: the spans, peaks and idle times that list scheduling in unit time has to reach."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.metrics import device_time_s, peak_alive, span_s
from meshwright.schedules import registered
from tests.schedules.timing import schedule_trace

TOLERANCE = 1e-9
# training.md 2.4, rows of equal times: (p, m) -> span of ZB2P, span of ZBV; the device time of both is 3 m
PUBLISHED = {(4, 8): (27, 25.5), (4, 12): (39, 37.5), (8, 24): (79, 75.5)}


@pytest.mark.parametrize(("p", "m"), PUBLISHED)
def test_published_spans_and_device_times(p: int, m: int) -> None:
    traces = [schedule_trace("zb_h2", p, m), schedule_trace("zbv", p, m, 2)]
    assert [span_s(trace) for trace in traces] == pytest.approx(PUBLISHED[p, m], abs=TOLERANCE)
    assert [device_time_s(trace) for trace in traces] == pytest.approx([3 * m] * 2, abs=TOLERANCE)
    assert peak_alive(traces[0]) == [2 * p] * p and peak_alive(traces[1]) == [p] * p


@pytest.mark.parametrize("p", range(1, 9))
def test_no_device_has_a_bubble_of_its_own(p: int) -> None:
    """Equal times, all m from 2p - 1 to 24: devices start one forward apart and are never idle until their end."""
    for m in range(2 * p - 1, 25):
        for name, v in (("zb_h2", 1), ("zbv", 2)):
            trace = schedule_trace(name, p, m, v)
            assert device_time_s(trace) == pytest.approx(3 * m, abs=TOLERANCE), (name, m)
            assert span_s(trace) == pytest.approx(3 * m + (p - 1) / v, abs=TOLERANCE), (name, m)
            assert max(peak_alive(trace)) <= 2 * p / v, (name, m)


@pytest.mark.parametrize(
    ("p", "m", "times", "spans"),
    # the published generators see the times and print 28 and 26.75, 81.4 and 78.6: an order from counts alone loses that
    [(4, 8, (1, 1.5, 0.5), (28.5, 27.75)), (8, 24, (1, 1.2, 0.9), (81.4, 79.15))],
)
def test_unequal_times(p: int, m: int, times: tuple[float, float, float], spans: tuple[float, float]) -> None:
    got = (span_s(schedule_trace("zb_h2", p, m, 1, times)), span_s(schedule_trace("zbv", p, m, 2, times)))
    assert got == pytest.approx(spans, abs=TOLERANCE)


@pytest.mark.parametrize("p", range(1, 9))
def test_one_wave_is_one_long_pipeline_up_to_p_microbatches(p: int) -> None:
    """F = I = W = 1, m <= p: the first microbatch's way down and up; idle (3 (p - 1) - (m - 1)) of a full stage."""
    for m in range(1, p + 1):
        span = span_s(schedule_trace("hanayo", p, m, 2))
        assert span == pytest.approx(3 * m + 3 * (p - 1) - (m - 1), abs=TOLERANCE), m


@pytest.mark.parametrize("p", [2, 4, 8])
def test_each_wave_takes_idle_time_away_where_microbatches_are_as_many_as_devices(p: int) -> None:
    spans = [span_s(schedule_trace("hanayo", p, p, v)) for v in (2, 4, 8)]
    assert spans[0] > spans[1] > spans[2] > 3 * p
    assert spans[0] < span_s(schedule_trace("1f1b", p, p))


def test_at_most_two_rounds_are_under_way() -> None:
    """Of one microbatch all stages are alive at most, on a device its chunks: 2 p microbatches, whole stages."""
    for p, m, v in ((2, 20, 2), (4, 24, 2), (4, 24, 4)):
        started = finished = most = 0
        last = [c for c in registered()["hanayo"].orders(p, m, v)[0] if c.stage == 0]
        for compute in last:
            started += compute.name == "F"
            finished += compute.name == "B"
            most = max(most, started - finished)
        assert most <= 2 * p
