"""Fixed schedules equal their closed forms, and the published table of spans and peak activations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.judge.metrics import busy_s, device_time_s, peak_alive, span_s
from meshwright.schedules import registered
from tests.covering import examples
from tests.schedules.timing import idle_of_devices, latency_edge_span, schedule_trace

SECONDS = st.floats(0.05, 4.0, allow_nan=False)
DEVICES, MICROBATCHES = st.integers(1, 8), st.integers(1, 32)
TOLERANCE = 1e-9


@settings(max_examples=examples(150))
@given(st.sampled_from(["gpipe", "1f1b"]), DEVICES, MICROBATCHES, SECONDS, SECONDS, SECONDS)
def test_idle_of_gpipe_and_1f1b(name: str, p: int, m: int, f: float, i: float, w: float) -> None:
    trace = schedule_trace(name, p, m, 1, (f, i, w))
    assert idle_of_devices(trace) == pytest.approx([(p - 1) * (f + i + w)] * p, abs=TOLERANCE)


@settings(max_examples=examples(100))
@given(st.integers(1, 8), st.integers(1, 4), st.integers(2, 4), SECONDS, SECONDS, SECONDS)
def test_idle_of_interleaved_where_devices_divide(
    p: int, rounds: int, v: int, f: float, i: float, w: float
) -> None:
    trace = schedule_trace("interleaved_1f1b", p, min(p * rounds, 32 // p * p), v, (f, i, w))
    assert idle_of_devices(trace) == pytest.approx([(p - 1) * (f + i + w) / v] * p, abs=TOLERANCE)


@settings(max_examples=examples(100))
@given(DEVICES, MICROBATCHES, st.integers(2, 4), SECONDS, SECONDS, SECONDS)
def test_interleaved_takes_any_number_of_microbatches(
    p: int, m: int, v: int, f: float, i: float, w: float
) -> None:
    """A span never above that of m rounded up to a multiple of p, and all the work is done."""
    trace = schedule_trace("interleaved_1f1b", p, m, v, (f, i, w))
    rounded = schedule_trace("interleaved_1f1b", p, -(-m // p) * p, v, (f, i, w))
    assert span_s(trace) <= span_s(rounded) + TOLERANCE
    assert busy_s(trace).tolist() == pytest.approx([m * (f + i + w)] * p, abs=TOLERANCE)


@settings(max_examples=examples(150))
@given(DEVICES, st.data(), SECONDS, SECONDS, SECONDS)
def test_idle_of_zb_h1(p: int, data: st.DataObject, f: float, i: float, w: float) -> None:
    m = data.draw(st.integers(p, 32))
    w = min(f, i, w)
    trace = schedule_trace("zb_h1", p, m, 1, (f, i, w))
    assert idle_of_devices(trace) == pytest.approx([(p - 1) * (f + i - w)] * p, abs=TOLERANCE)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_every_count(name: str) -> None:
    """All p <= 8 and m <= 32, at one choice of times (F >= W, I >= W)."""
    f, i, w = 1.3, 1.2, 0.9
    for p in range(1, 9):
        for m in range(p if name == "zb_h1" else 1, 33):
            idle = (p - 1) * (f + i - w if name == "zb_h1" else f + i + w)
            span = span_s(schedule_trace(name, p, m, 1, (f, i, w)))
            assert span == pytest.approx(m * (f + i + w) + idle, abs=TOLERANCE), (p, m)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1"])
@pytest.mark.parametrize("m", [1, 2, 7])
def test_one_device_never_idles(name: str, m: int) -> None:
    v = registered()[name].num_chunks
    trace = schedule_trace(name, 1, m, v, (1.0, 1.5, 0.5))
    assert span_s(trace) == pytest.approx(3.0 * m, abs=TOLERANCE)


# training.md 2.4: (p, m, (F, I, W)) -> spans of 1F1B, interleaved v=2, v=4, ZB-H1
COLUMNS = (("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4), ("zb_h1", 1))
TABLE = [
    (4, 8, (1, 1, 1), (33, 28.5, 26.25, 27)),
    (4, 12, (1, 1, 1), (45, 40.5, 38.25, 39)),
    (8, 24, (1, 1, 1), (93, 82.5, 77.25, 79)),
    (4, 8, (1, 1.5, 0.5), (33, 28.5, 26.25, 30)),
    (8, 24, (1, 1.2, 0.9), (96.1, 85.25, 79.825, 83.5)),  # the table prints 79.83
]


@pytest.mark.parametrize("p, m, times, spans", TABLE)
def test_published_spans(p: int, m: int, times: tuple[float, float, float], spans: tuple[float, ...]) -> None:
    got = [span_s(schedule_trace(name, p, m, v, times)) for name, v in COLUMNS]
    assert got == pytest.approx(spans, abs=TOLERANCE)


@pytest.mark.parametrize(
    "name, v, p, m, peaks",
    [
        ("1f1b", 1, 4, 8, [4, 3, 2, 1]),
        ("interleaved_1f1b", 2, 4, 8, [5.5, 4.5, 3.5, 2.5]),
        ("interleaved_1f1b", 4, 4, 8, [4.75, 4.25, 3.75, 3.25]),
        ("zb_h1", 1, 4, 8, [4] * 4),
        ("1f1b", 1, 8, 24, [8, 7, 6, 5, 4, 3, 2, 1]),
        ("interleaved_1f1b", 2, 8, 24, [11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5]),
        ("interleaved_1f1b", 4, 8, 24, [9.75, 9.25, 8.75, 8.25, 7.75, 7.25, 6.75, 6.25]),
        ("zb_h1", 1, 8, 24, [8] * 8),
        ("gpipe", 1, 4, 8, [8] * 4),
    ],
)
def test_published_peak_activations(name: str, v: int, p: int, m: int, peaks: list[float]) -> None:
    assert peak_alive(schedule_trace(name, p, m, v)) == pytest.approx(peaks, abs=TOLERANCE)


def test_the_example_of_the_command_line() -> None:
    """1F1B, 8 devices, 24 microbatches, latency 0.1 a hop: span 98.4."""
    trace = schedule_trace("1f1b", 8, 24, comm=0.1)
    assert span_s(trace) == pytest.approx(98.4, abs=TOLERANCE)
    assert device_time_s(trace) == pytest.approx(98.4, abs=TOLERANCE)


@settings(max_examples=examples(60))
@given(
    st.sampled_from(COLUMNS + (("gpipe", 1),)),
    DEVICES,
    MICROBATCHES,
    st.floats(0.0, 2.0),
    SECONDS,
    SECONDS,
    SECONDS,
)
def test_with_latency_only_a_span_is_the_latency_edge_model(
    column: tuple[str, int], p: int, m: int, comm: float, f: float, i: float, w: float
) -> None:
    name, v = column
    orders = registered()[name].orders(p, m, v)
    expected = latency_edge_span(orders, (f, i, w), 1 / v, comm)
    assert span_s(schedule_trace(name, p, m, v, (f, i, w), comm)) == pytest.approx(expected, abs=TOLERANCE)
