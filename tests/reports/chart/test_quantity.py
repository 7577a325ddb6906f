"""Numbers for people and the ticks of axes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.reports.chart.quantity import nice_ticks, quantity, tick_texts


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (1.9e9, "B", "1.9 GB"),
        (0.274, "share", "27.4 %"),
        (98.4, "", "98.4"),
        (41200.0, "tokens/s", "41,200 tokens/s"),
        (None, "s", "-"),
        (math.nan, "B", "-"),
    ],
)
def test_quantities(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@given(low=st.floats(-1e6, 1e6), extent=st.floats(1e-6, 1e9), count=st.integers(1, 20))
def test_ticks_are_inside_even_and_about_as_many(low: float, extent: float, count: int) -> None:
    high = low + extent
    if not high - low > 1e-9 * abs(low):
        return
    ticks = nice_ticks(low, high, count)
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert len(ticks) <= 1.3 * count + 2
    assert ticks == sorted(ticks)


def test_ticks_share_a_prefix() -> None:
    assert tick_texts([0.0, 0.1, 0.2], "s") == ["0", "100", "200 ms"]
    assert tick_texts([0.0, 2e9], "B") == ["0", "2 GB"]
    assert tick_texts([0.0, 10.0], "") == ["0", "10"]
