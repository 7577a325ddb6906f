"""Remapping: no scheme moves fewer tokens, ranks are even behind it, and the way back is the inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.systems.sequence.zeppelin.remap import (
    TokenMove,
    even_shares,
    least_moved,
    places_after,
    places_back,
    remapped,
    tokens_after,
)

LOADS = st.sampled_from([(8, 8), (8, 4), (12, 4), (6, 2), (5, 1), (1, 1)]).flatmap(
    lambda shape: st.tuples(
        st.lists(st.integers(0, 60), min_size=shape[0], max_size=shape[0]), st.just(shape[1])
    )
)


def test_surpluses_go_to_ranks_of_their_own_node_first() -> None:
    tokens = (9, 3, 6, 2)  # a mean of 5: 4 and 1 too many, 2 and 3 too few
    assert even_shares(tokens) == [5, 5, 5, 5] and least_moved(tokens) == 5
    assert remapped(tokens, 2) == [TokenMove(0, 1, 2), TokenMove(2, 3, 1), TokenMove(0, 3, 2)]
    assert remapped((4, 4, 4), 3) == []
    assert even_shares((3, 0, 4)) == [2, 2, 3]  # the rank with the most keeps one more


def test_who_has_no_whole_nodes_is_told() -> None:
    with pytest.raises(PlanError, match="3 in a node"):
        remapped((1, 2, 3, 4), 3)


@given(LOADS)
def test_moved_tokens_are_all_surpluses_and_ranks_differ_by_one(load: tuple[list[int], int]) -> None:
    tokens, node = load
    moves = remapped(tokens, node)
    after = tokens_after(tokens, moves)
    assert sum(move.num_tokens for move in moves) == least_moved(tokens)
    assert sum(after) == sum(tokens) and max(after) - min(after) <= 1
    shares = even_shares(tokens)
    assert after == shares
    between = sum(move.num_tokens for move in moves if move.source // node != move.target // node)
    own = [sum(tokens[n : n + node]) - sum(shares[n : n + node]) for n in range(0, len(tokens), node)]
    assert between == sum(max(0, one) for one in own)  # what a node has too many has to leave it


@given(LOADS)
def test_no_even_shares_move_less(load: tuple[list[int], int]) -> None:
    """Which ranks keep one more: any others move as many tokens or more."""
    tokens, _ = load
    least, more = divmod(sum(tokens), len(tokens))
    for first in range(len(tokens)):
        lucky = {(first + n) % len(tokens) for n in range(more)}
        other = [least + (rank in lucky) for rank in range(len(tokens))]
        assert least_moved(tokens) <= sum(max(0, a - b) for a, b in zip(tokens, other, strict=True))


@given(LOADS)
def test_the_way_back_is_the_inverse(load: tuple[list[int], int]) -> None:
    tokens, node = load
    moves = remapped(tokens, node)
    before = [[(rank, place) for place in range(count)] for rank, count in enumerate(tokens)]
    after = places_after(tokens, moves)
    assert [len(own) for own in after] == tokens_after(tokens, moves)
    moved = [[before[rank][place] for rank, place in own] for own in after]
    back = [[moved[rank][place] for rank, place in own] for own in places_back(after)]
    assert back == before
