"""Copies and owners by hand, and loads of devices: nobody's tokens are lost, and places are never overrun."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import SpecError
from meshwright.systems.moe.hecate.mechanism import (
    Move,
    PlannedCopies,
    dispatched,
    even_sources,
    gathered_bytes,
    imbalance,
    lognormal_loads,
    materialized,
    most_received_share,
    moves_of,
    overlap_degree,
    owned,
    sharded,
)

OWNERS = np.array([0, 0, 1, 1])


def test_experts_that_come_while_others_compute() -> None:
    assert overlap_degree(0.01, 1e9, 3e6, 8) == 3 and overlap_degree(1.0, 1e9, 3e6, 8) == 8


def test_the_busiest_are_everywhere_where_they_fit() -> None:
    """Two of four: four devices have them, so each is sent three times; lambda is two of four for whoever owns neither."""
    owners = np.arange(4)
    copies = materialized(np.array([5.0, 1.0, 7.0, 2.0]), owners, 2, 2, [0, 0, 1, 1])
    assert copies.sum(1).tolist() == [4, 1, 4, 1]
    assert gathered_bytes(owners, copies, 10.0) == 2 * 3 * 10
    assert most_received_share(owners, copies) == 0.5
    assert moves_of(owners, copies)[:2] == [Move(0, 0, 1), Move(0, 0, 2)]


def test_where_they_do_not_fit_the_busier_have_more_copies() -> None:
    """Three on devices with a place each: loads of 6 : 1 : 1 share four places as 3 : 0.5 : 0.5, which round to 3 : 0 : 0."""
    copies = materialized(np.array([6.0, 1.0, 1.0, 0.0]), np.arange(4), 3, 1, [0, 0, 1, 1])
    assert copies.sum(1).tolist() == [4, 1, 1, 1]
    assert (copies & ~owned(np.arange(4), 4)).sum(0).max() == 1


@given(st.integers(0, 99), st.integers(0, 8), st.integers(1, 4))
def test_places_are_never_overrun_and_owners_keep_theirs(seed: int, overlap: int, memory: int) -> None:
    loads, owners = lognormal_loads(1, 8, 1.0, seed)[0], np.repeat(np.arange(4), 2)
    copies = materialized(loads, owners, overlap, memory, [0, 0, 1, 1])
    assert copies[np.arange(8), owners].all()
    assert (copies & ~owned(owners, 4)).sum(0).max() <= max(memory, overlap if overlap <= memory else 0)


def test_tokens_stay_where_a_copy_is_then_in_the_node() -> None:
    """Expert 0 is on devices 0 and 2 of nodes (0, 1), (2, 3): each node serves its own. Expert 1 is on 3 alone."""
    copies = np.array([[True, False, True, False], [False, False, False, True]])
    sent = dispatched(np.ones((4, 2)), copies, [0, 0, 1, 1])
    assert sent[:, 0].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert sent[:, 1].argmax(1).tolist() == [3] * 4 and imbalance(sent) == 2.0
    far = dispatched(np.ones((4, 1)), np.array([[True, True, False, False]]), [0, 0, 1, 1])
    assert far[2, 0].tolist() == [0.5, 0.5, 0, 0]


@given(st.integers(0, 99))
def test_no_token_is_lost(seed: int) -> None:
    draw = np.random.default_rng(seed)
    loads = draw.integers(0, 9, (4, 6)).astype(float)
    copies = (draw.random((6, 4)) < 0.3) | owned(draw.integers(0, 4, 6), 4)
    sent = dispatched(loads, copies, [0, 0, 1, 1])
    np.testing.assert_allclose(sent.sum(2), loads)
    assert (sent.sum(0) > 0)[~copies].sum() == 0


def test_owners_have_as_many_and_spread_what_is_not_copied() -> None:
    """By hand: 4, 3, 2, 1 on two devices: 4 and 1, 3 and 2."""
    assert sharded(np.array([[4.0, 3.0, 2.0, 1.0]]), 0, [0, 0]).tolist() == [[0, 1, 1, 0]]
    owners = sharded(lognormal_loads(4, 16, 1.0, 0), 2, [0, 0, 1, 1])
    assert np.bincount(owners.reshape(-1)).tolist() == [16] * 4
    with pytest.raises(SpecError, match="as many on each"):
        sharded(np.ones((1, 5)), 0, [0, 0])


def test_skewed_loads_become_even() -> None:
    """Lognormal, sigma 1, 64 experts on 8 devices, t = 4: from 1.7 to at most 1.1; either part alone leaves more."""
    loads_LX, nodes, plain = lognormal_loads(58, 64, 1.0, 0), [0] * 8, np.arange(64) // 8

    def mean(owners_LX: np.ndarray, overlap: int) -> float:
        found = [
            imbalance(dispatched(even_sources(x, 8), materialized(x, owners, overlap, overlap, nodes), nodes))
            for x, owners in zip(loads_LX, owners_LX, strict=True)
        ]
        return float(np.mean(found))

    in_a_row = np.tile(plain, (58, 1))
    before, both = mean(in_a_row, 0), mean(sharded(loads_LX, 4, nodes), 4)
    copies_alone, owners_alone = mean(in_a_row, 4), mean(sharded(loads_LX, 0, nodes), 0)
    assert 1.6 < before < 1.8 and both <= 1.1
    assert both < owners_alone < before and both < copies_alone < before


def test_copies_follow_the_mean_of_five_and_owners_change_when_it_is_time() -> None:
    planned = PlannedCopies(np.array([[0, 0, 1, 1]]), 1, 1, [0, 0], every=3)
    assert [each.sum() for each in planned.copies()] == [4], "nothing was seen"
    assert planned.seen(np.array([[9.0, 1.0, 8.0, 7.0]])) == 0
    (copies,) = planned.copies()
    assert copies.sum(1).tolist() == [2, 1, 1, 1]
    assert planned.seen(np.array([[9.0, 1.0, 8.0, 7.0]])) == 0
    assert planned.seen(np.array([[9.0, 1.0, 8.0, 7.0]])) == 2, "8 and 7 are apart, 1 beside 7, 9 fills"
    for _ in range(5):
        planned.seen(np.array([[0.0, 0.0, 1.0, 0.0]]))
    (copies,) = planned.copies()
    assert copies.sum(1).tolist() == [1, 1, 2, 1], "older loads are forgotten"
