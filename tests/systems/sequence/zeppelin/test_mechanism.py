"""Zeppelin's zones: which sequences are in which, in which order groups stand, and that everything is placed and fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.sequence_steps import FILES, NUM_RANKS, costs, of_file
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.group_seconds import busy_seconds, imbalance
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.systems.sequence.zeppelin.mechanism import Zeppelin, Zones, hidden_from

SMALL = SequenceCosts(
    square_s=1e-3, token_s=1e-2, fixed_s=0.0, token_bytes=10, state_bytes=20, capacity_bytes=120
)  # a rank holds ten tokens; nothing hides
RING = replace(SMALL, is_beside=True, ring_bytes=1.0, rates={2: 100.0, 8: 20.0})


def test_zones_are_by_what_ranks_and_nodes_hold_and_run_from_the_outer_to_the_inner() -> None:
    lengths = (5, 70, 25, 10, 3, 41)
    zones = Zones.of(lengths, 8, 4, SMALL)
    assert (zones.over_nodes, zones.in_nodes, zones.local) == ((1, 5), (2,), (3, 0, 4))
    batch = Zeppelin(4)(lengths, 8, SMALL)
    assert [group.degree for group in batch.groups] == [8, 8, 4, 1, 1, 1]
    assert batch.groups[2].ranks in ((0, 1, 2, 3), (4, 5, 6, 7))
    shared = set(batch.groups[2].ranks)
    assert all(
        group.ranks[0] not in shared for group in batch.groups[3:]
    )  # who is free does what one rank does


def test_a_ring_that_attention_hides_makes_a_sequence_one_of_the_outer_zone() -> None:
    # two ranks: s^2 / 2000 s of attention, s / 200 s of ring, equal at ten tokens
    assert hidden_from(2, RING) == 10 and hidden_from(2, SMALL) == hidden_from(1, RING) == float("inf")
    fixed = replace(RING, exchange_s=0.05)  # s^2 / 2000 = s / 200 + 1 / 20 at 5 + sqrt(125)
    assert hidden_from(2, fixed) == 17
    zones = Zones.of((9, 10, 5), 4, 2, RING)
    assert zones.in_nodes == (1,) and zones.local == (0, 2)


def test_one_node_has_no_outer_zone_and_single_ranks_no_middle_one() -> None:
    assert Zones.of((25, 70, 3), 8, 8, SMALL).over_nodes == ()
    assert Zones.of((25, 7, 3), 4, 1, SMALL).in_nodes == ()
    assert {group.degree for group in Zeppelin()((25, 7, 3), 4, SMALL).groups} == {4, 1}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="needs 9 ranks of 8"):
        Zeppelin(4)((81, 3), 8, SMALL)
    with pytest.raises(PlanError, match=r"zeppelin\(node=2\)"):
        Zeppelin(4)((8, 3), 6, SMALL)


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=60),
    st.sampled_from([(8, 8), (8, 4), (8, 2), (12, 4), (8, 1), (2, 8)]),
    st.sampled_from([SMALL, RING]),
)
def test_everything_is_placed_once_and_nobody_holds_too_much(
    lengths: list[int], ranks: tuple[int, int], known: SequenceCosts
) -> None:
    num_ranks, node = ranks
    lengths = [min(one, 10 * num_ranks) for one in lengths]
    batch = Zeppelin(node)(lengths, num_ranks, known)  # a GroupedBatch refuses what is not placed once
    for group in batch.groups:
        assert known.held_bytes(batch.group_lengths(group), group.degree) <= known.capacity_bytes
        assert group.degree == 1 or group.degree % min(node, num_ranks) == 0
    degrees = [group.degree for group in batch.groups]
    zones = [(degree > 1) + (degree > node) for degree in degrees]
    assert zones == sorted(zones, reverse=True)
    assert all(list(own) == sorted(own) for own in batch.of_rank)


@pytest.mark.parametrize("name", FILES)
def test_steps_of_real_lengths_are_even(name: str, shared_data: Path) -> None:
    batch = Zeppelin()(of_file(shared_data, name, 0), NUM_RANKS, costs())
    assert imbalance(busy_seconds(batch, costs())) <= 1.05
