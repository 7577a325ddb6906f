"""Which tokens of packed sequences a rank has: together all of them once, each sequence by equal halves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.packed_part import PackedPart, padded_length, parts_of_ranks
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 6))
def test_ranks_have_every_place_once_and_equally_many(lengths: list[int], degree: int) -> None:
    parts = parts_of_ranks(lengths, degree)
    places = [place for part in parts for run in part.runs for place in run]
    assert sorted(places) == list(range(parts[0].sequence_length))
    assert {sum(map(len, part.runs)) for part in parts} == {parts[0].num_tokens}
    assert sum(part.num_real_tokens for part in parts) == sum(lengths)
    for part in parts:
        own = [place for run in part.runs for place in run]
        assert own == sorted(own)


def test_a_sequence_is_cut_in_a_zigzag_and_padded_to_whole_runs() -> None:
    part = PackedPart((5, 8), 2, 1)
    assert padded_length(5, 2) == 8 and padded_length(5, 1) == 5
    assert part.runs == (range(2, 4), range(4, 6), range(10, 12), range(12, 14))
    assert part.num_real_tokens == 3 + 4
    assert part.source(1) == PackedPart((5, 8), 2, 0)


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlanError, match="rank 2 of 2"):
        PackedPart((4,), 2, 2)


def test_microbatches_follow_groups_and_their_ranks_and_idle_ranks_have_one_token_of_padding() -> None:
    groups = GroupedBatch((6, 3), 3, (SequenceGroup((2, 0), (1,)), SequenceGroup((2,), (0,))))
    found = [(each.group, each.rank, each.sequences, each.part.num_tokens) for each in groups.microbatches]
    assert found == [(0, 2, (1,), 2), (0, 0, (1,), 2), (1, 2, (0,), 6), (-1, 1, (), 1)]
    weights = [groups.weight(each) for each in groups.microbatches]
    assert sum(weights) == pytest.approx(1.0) and weights[-1] == 0.0
