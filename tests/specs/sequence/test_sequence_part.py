"""Where tokens are: every one on one rank, and what does not divide is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.sequence_part import (
    ARRANGEMENTS,
    SequencePart,
    attended_pairs_of,
    most_attended_pairs,
    num_runs,
    work_ratio,
)


@given(
    ring=st.integers(1, 7),
    ulysses=st.integers(1, 5),
    run=st.integers(1, 7),
    arrangement=st.sampled_from(ARRANGEMENTS),
)
def test_every_token_is_on_one_rank(ring, ulysses, run, arrangement):
    degree = ring * ulysses
    length = run * num_runs(degree, arrangement, ulysses)
    parts = [SequencePart(length, degree, rank, arrangement, ulysses) for rank in range(degree)]
    places = [[place for run in part.runs for place in run] for part in parts]
    assert sorted(place for own in places for place in own) == list(range(length))
    assert all(own == sorted(own) and len(own) == part.num_tokens for own, part in zip(places, parts))


def test_a_zigzag_deals_out_runs_from_both_ends():
    assert SequencePart(24, 3, 1, "zigzag").runs == (range(4, 8), range(16, 20))
    assert SequencePart(24, 3, 1).runs == (range(8, 16),)
    assert SequencePart(24, arrangement="zigzag").runs == (range(24),)


def test_a_stripe_takes_every_other_token():
    assert SequencePart(12, 3, 1, "stripe").runs == (range(1, 12, 3),)
    assert SequencePart(12, arrangement="stripe").runs == (range(12),)


def test_neighbours_that_exchange_heads_have_pieces_of_one_rank_of_a_ring():
    """Of 2R runs rank r of the ring has r and 2R - 1 - r, concatenated, then cut by the ranks of its group."""
    group = [SequencePart(48, 6, rank, "zigzag", 3) for rank in (3, 4, 5)]
    assert group[0].neighbours == tuple(group) and {part.ring for part in group} == {
        SequencePart(48, 2, 1, "zigzag")
    }
    assert group[0].ring.runs == (range(12, 24), range(24, 36))
    assert [part.runs for part in group] == [
        (range(12, 20),),
        (range(20, 24), range(24, 28)),
        (range(28, 36),),
    ]
    assert SequencePart(16, 4, 3, "stripe", 2).runs == (range(9, 16, 2),)


def test_blocks_go_round_the_ring():
    part = SequencePart(24, 4, 1, "contiguous")
    assert [part.source(step).rank for step in range(4)] == [1, 0, 3, 2]
    assert part.whole.runs == (range(24),)


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ((9, 2), "multiple of 2"),
        ((10, 2, 0, "zigzag"), "multiple of 4"),
        ((0,), "0 tokens"),
        ((8, 2, 2), "0 to 1"),
        ((8, 2, 0, "striped"), "contiguous or zigzag or stripe"),
        ((8, 2, 0, "stripe", 3), "a number that divides 2"),
        ((15, 6, 0, "zigzag", 3), "multiple of 12"),
    ],
)
def test_what_cannot_be_is_refused(choices, word):
    with pytest.raises(PlanError, match=word):
        SequencePart(*choices)


@given(
    degree=st.integers(1, 6),
    run=st.integers(1, 9),
    window=st.integers(0, 40),
    arrangement=st.sampled_from(ARRANGEMENTS),
)
def test_pairs_are_those_that_the_tokens_see(degree, run, window, arrangement):
    length = run * num_runs(degree, arrangement)
    parts = [SequencePart(length, degree, rank, arrangement) for rank in range(degree)]
    seen = [sum(min(place + 1, window or length) for run in part.runs for place in run) for part in parts]
    assert [attended_pairs_of(part.runs, window) for part in parts] == seen
    assert most_attended_pairs(parts[0], window) == max(seen)
    assert work_ratio(parts[0], window) == pytest.approx(max(seen) * degree / sum(seen))


@pytest.mark.parametrize("degree", [2, 3, 4, 8])
def test_the_busiest_rank_by_layout(degree):
    """Contiguous tends to 2 - 1 / P, a zigzag is exactly even, stripes differ by less than a token's keys."""
    length = 64 * degree
    ratio = {name: work_ratio(SequencePart(length, degree, 0, name)) for name in ARRANGEMENTS}
    assert ratio["zigzag"] == 1.0
    assert ratio["contiguous"] == pytest.approx(2 - 1 / degree, rel=0.01)
    assert ratio["stripe"] == pytest.approx(1 + (degree - 1) / (length + 1), abs=1e-12)
