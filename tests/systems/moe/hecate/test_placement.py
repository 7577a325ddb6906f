"""Hecate's owners and copies as a placement: even by construction, the busiest everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import catalog
from meshwright.specs.error import SpecError
from meshwright.specs.routing.expert_placement import ContiguousExperts, GroupShape
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.systems.moe.hecate.placement import Hecate, fill

TRACE = markov_trace(600, 4, 16, 0.3, seed=0)


def trace_of(counts: list[int]) -> RoutingTrace:
    """One layer, whose experts get so many tokens."""
    experts = np.repeat(np.arange(len(counts)), counts)
    return RoutingTrace(experts[:, None, None], len(counts), (0,))


def test_owners_go_to_the_least_loaded_device() -> None:
    """Loads 8, 7, 2, 1 on two devices: 8 there, 7 here, 2 to the lighter one, 1 to what is left."""
    placed = Hecate()(trace_of([8, 7, 2, 1]), GroupShape(2))
    assert placed.devices.tolist() == [[0, 1, 1, 0]]


def test_copies_stand_on_every_device() -> None:
    """The busiest is copied: its owner has a place left, which is taken, too."""
    placed = Hecate(overlap=1)(trace_of([8, 7, 2, 1]), GroupShape(2))
    holders = placed.copies[0].sum(0).tolist()
    assert placed.experts.shape == (1, 6) and holders[0] == 2 and sum(holders) == 6


def test_places_that_are_left_go_where_the_busiest_device_is_left_least() -> None:
    """Device 0 has 10 + 1, device 1 has 4 and a place: half of the 10 comes there, not half of the 1."""
    copies = np.array([[True, False], [True, False], [False, True]])
    fill(copies, np.array([10.0, 1.0, 4.0]), 2)
    assert copies.tolist() == [[True, True], [True, False], [False, True]]


@pytest.mark.parametrize("shape", [GroupShape(4), GroupShape(4, 2), GroupShape(8, 2)])
def test_loads_are_more_even_than_in_a_row_and_more_so_with_copies(shape: GroupShape) -> None:
    in_a_row, owners, copied = (
        float(make(TRACE, shape).imbalances(TRACE).mean())
        for make in (ContiguousExperts(), Hecate(), Hecate(overlap=4))
    )
    assert in_a_row > owners >= copied >= 1.0


def test_few_places_bound_the_copies() -> None:
    placed = Hecate(overlap=4, memory=2)(TRACE, GroupShape(4))
    assert placed.experts.shape == (4, 4 * (16 // 4 + 2)) and placed.has_copies


@pytest.mark.parametrize(
    ("make", "devices"), [(Hecate(), 3), (Hecate(overlap=13), 4), (Hecate(overlap=17, memory=1), 4)]
)
def test_what_does_not_divide_or_fit_is_refused(make: Hecate, devices: int) -> None:
    with pytest.raises(SpecError, match="experts"):
        make(TRACE, GroupShape(devices))


def test_the_slot_has_it() -> None:
    assert catalog.filler("expert_placement", "hecate(overlap=2)") == Hecate(2)
