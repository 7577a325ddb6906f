"""Chances that plans fit: one at the upper end, a half at what is usually reserved, none where the rest would not fit."""

from __future__ import annotations

import pytest

from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate
from meshwright.prediction.memory_limit import fit_probability


def device(lasting: float, middle: float, high: float) -> DeviceMemory:
    return DeviceMemory(
        0, "backward", lasting + 1, middle, high, 1.0, (("parameters", lasting), ("logits", 1.0))
    )


@pytest.mark.parametrize(
    ("room", "chance"),
    [
        (8, 0.0),
        (9, 0.0),
        (10, 1 / 72),
        (12, 1 / 8),
        (15, 1 / 2),
        (18, 7 / 8),
        (20, 71 / 72),
        (21, 1.0),
        (25, 1.0),
    ],
)
def test_the_chance_is_that_of_a_triangle_around_what_is_reserved(room: float, chance: float) -> None:
    """Usually 15 reserved, at most 21, so 9 at least; one byte lies outside the allocator."""
    assert fit_probability(MemoryEstimate((device(3, 15, 21),)), room + 1) == pytest.approx(chance)


def test_no_run_has_less_than_what_stays() -> None:
    assert fit_probability(MemoryEstimate((device(12, 15, 21),)), 13) == 0.0
    assert fit_probability(MemoryEstimate((device(12, 15, 21),)), 14.5) == pytest.approx((1.5 / 3) ** 2 / 2)


def test_the_device_that_is_least_likely_to_fit_decides_and_a_host_has_no_interval() -> None:
    two = MemoryEstimate((device(3, 14, 20), device(3, 16, 30)))
    assert fit_probability(two, 17) == pytest.approx(0.5)
    certain = MemoryEstimate((device(9, 10, 10),))
    assert [fit_probability(certain, room) for room in (10.9, 11.0)] == [0.0, 1.0]
