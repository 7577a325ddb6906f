"""V-Half, V-Min and V-1F1B: published spans and peaks, idle time for all small counts, patterns for many devices."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.metrics import peak_alive, span_s
from meshwright.schedules import registered
from meshwright.schedules.repeating_pattern import order_of_pattern
from tests.schedules.timing import latency_edge_span, schedule_trace

TOLERANCE = 1e-9
NAMES = ("v_half", "v_min", "v_1f1b")
# training.md 2.4, rows of equal times. V-Min is published with 85.5 at p=8: ours is shorter at the same largest peak.
SPANS = {(4, 8): (26.5, 29.5, 31.5), (4, 12): (38.5, 41.5, 43.5), (8, 24): (80.5, 83.5, 88.5)}
PEAKS = {4: (3, 2, 3), 8: (5, 4, 6)}  # of a device, in activations of a full stage
# Idle time of a device in halves of a forward, m >= p
V_1F1B_IDLE = {1: 0, 2: 4, 3: 8, 4: 15, 5: 18, 6: 22, 7: 30, 8: 33}


@pytest.mark.parametrize(("p", "m"), SPANS)
def test_published_spans_and_peaks(p: int, m: int) -> None:
    traces = [schedule_trace(name, p, m, 2) for name in NAMES]
    assert [span_s(trace) for trace in traces] == pytest.approx(SPANS[p, m], abs=TOLERANCE)
    assert tuple(max(peak_alive(trace)) for trace in traces) == PEAKS[p]


@pytest.mark.parametrize(
    ("p", "m", "times", "spans"),
    # published: 31, 41.75, 31.5 and 85.45, 100.6, 91.6
    [(4, 8, (1, 1.5, 0.5), (31.25, 38.75, 31.5)), (8, 24, (1, 1.2, 0.9), (84.85, 97.3, 91.6))],
)
def test_unequal_times(p: int, m: int, times: tuple[float, float, float], spans: tuple[float, ...]) -> None:
    got = [span_s(schedule_trace(name, p, m, 2, times)) for name in NAMES]
    assert got == pytest.approx(spans, abs=TOLERANCE)


def idle_halves(name: str, p: int) -> int:
    """What fill and drain leave, found by fitting all p <= 8: linear in p for each remainder of the pattern's gap."""
    if p <= 2 and name != "v_1f1b":
        return p - 1
    if name == "v_half":
        return 3 * p - (4 if p % 2 else 7)
    return 4 * p - (7, 5, 9)[p % 3] if name == "v_min" else V_1F1B_IDLE[p]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", range(1, 9))
def test_idle_time_does_not_depend_on_microbatches(name: str, p: int) -> None:
    for m in range(p, 25):
        idle = span_s(schedule_trace(name, p, m, 2)) - 3 * m
        late = (
            1 if (name, p, m) == ("v_min", 8, 11) else 0
        )  # the one case in which squeezing once more would gain
        assert idle == pytest.approx((idle_halves(name, p) + late) / 2, abs=TOLERANCE), m


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15])
def test_largest_peak(p: int) -> None:
    """A half, a third and two thirds of the p activations of 1F1B, and one."""
    peaks = [max(peak_alive(schedule_trace(name, p, 2 * p, 2))) for name in NAMES]
    assert peaks == [p // 2 + 1, (p + 1) // 3 + 1, 2 * p // 3 + 1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [9, 13, 16, 17, 24, 33, 64])
def test_many_devices(name: str, p: int) -> None:
    """The order is legal (the model asserts it) and no slower than one microbatch after the other."""
    orders = registered()[name].orders(p, 5)
    assert latency_edge_span(orders, (1, 1, 1), 0.5, 0.0) <= 5 * 3 * p


def test_a_pattern_of_ones_own() -> None:
    """One device: F, F, B (two slots), B (two slots), back to back, never idle."""
    orders = order_of_pattern([(0, 1, 2, 4)], 3, splits_backward=False)
    assert [f"{c.stage}{c.name}{c.microbatch}" for c in orders[0][:4]] == ["0F0", "1F0", "1B0", "0B0"]
    assert latency_edge_span(orders, (1, 1, 1), 0.5, 0.0) == 9
