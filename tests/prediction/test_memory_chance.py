"""Chances that plans fit: one at the upper end, none at the lower, and what a triangle says between."""

from __future__ import annotations

import pytest

from meshwright.prediction.memory_chance import fit_probability
from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate


def device(low: float, mode: float, high: float) -> DeviceMemory:
    return DeviceMemory(0, "backward", low, mode, high, 1.0, ())


@pytest.mark.parametrize(
    ("room", "chance"),
    [
        (5, 0.0),
        (10, 0.0),
        (11, 1 / 40),
        (14, 16 / 40),
        (16, 1 - 16 / 60),
        (18, 1 - 4 / 60),
        (20, 1.0),
        (25, 1.0),
    ],
)
def test_the_chance_is_that_of_a_triangle(room: float, chance: float) -> None:
    """Tensors of 10 bytes, usually 14 reserved, at most 20: one byte lies outside the allocator."""
    assert fit_probability(MemoryEstimate((device(10, 14, 20),)), room + 1) == pytest.approx(chance)


def test_the_device_that_is_least_likely_to_fit_decides_and_a_host_has_no_interval() -> None:
    two = MemoryEstimate((device(10, 14, 20), device(15, 16, 30)))
    assert fit_probability(two, 17) == pytest.approx(1 / 15)
    certain = MemoryEstimate((device(10, 10, 10),))
    assert [fit_probability(certain, room) for room in (10.9, 11.0)] == [0.0, 1.0]
