"""EPLB: the published example, loads that copies even out, and copies that are never together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.specs.error import SpecError
from meshwright.specs.routing.balanced_experts import balanced_slots
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape

# the example of deepseek-ai/EPLB's README: two layers of 12 experts, 16 slots, 4 groups, 2 nodes of 4 GPUs
LOADS = np.array(
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]], float
)  # fmt: skip
GOLDEN = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def test_the_published_example() -> None:
    assert balanced_slots(LOADS, 16, 4, GroupShape(8, 2)).tolist() == GOLDEN


def imbalance(loads: np.ndarray, slots: np.ndarray, num_devices: int) -> float:
    """Mean over layers of the busiest device over the mean."""
    copies = ExpertPlacement(slots, num_devices, tuple(range(len(slots)))).copies
    shares = np.einsum("lge,le->lg", copies / copies.sum(1, keepdims=True), loads)
    return float((shares.max(1) / shares.mean(1)).mean())


def test_lognormal_loads_are_evened_out_as_noted() -> None:
    """58 layers, 64 experts, 8 devices, sigma 1: contiguous 1.66, packed 1.1, with eight copies 1.005 (the notes, 7.4)."""
    loads = np.random.default_rng(0).lognormal(0, 1.0, (58, 64))
    contiguous = np.tile(np.arange(64), (58, 1))
    assert imbalance(loads, contiguous, 8) == pytest.approx(1.66, abs=0.1)
    assert imbalance(loads, balanced_slots(loads, 64, 1, GroupShape(8)), 8) == pytest.approx(1.105, abs=0.03)
    assert imbalance(loads, balanced_slots(loads, 72, 1, GroupShape(8)), 8) == pytest.approx(1.005, abs=0.01)


def test_groups_that_nodes_do_not_divide_are_packed_over_all_devices() -> None:
    assert np.array_equal(
        balanced_slots(LOADS, 16, 3, GroupShape(8, 2)), balanced_slots(LOADS, 16, 1, GroupShape(8))
    )


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_every_expert_stands_somewhere_and_copies_apart(data: st.DataObject) -> None:
    num_devices = data.draw(st.sampled_from([2, 3, 4, 8]))
    num_experts = num_devices * data.draw(st.integers(1, 4))
    extra = num_devices * data.draw(st.integers(0, 4))
    loads = np.array(
        data.draw(st.lists(st.floats(0, 1e3), min_size=2 * num_experts, max_size=2 * num_experts))
    ).reshape(2, num_experts)
    most = num_experts * num_devices
    slots = balanced_slots(loads, min(num_experts + extra, most), 1, GroupShape(num_devices))
    ExpertPlacement(slots, num_devices, (0, 1))  # refuses what is no placement


def test_what_does_not_divide_is_refused() -> None:
    for slots, groups in ((15, 4), (8, 4), (16, 5), (200, 4)):
        with pytest.raises(SpecError):
            balanced_slots(LOADS, slots, groups, GroupShape(8, 2))
