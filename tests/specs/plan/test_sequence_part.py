"""Where tokens are: every one on one rank, and what does not divide is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import PlanError
from meshwright.specs.plan.sequence_part import (
    ARRANGEMENT_OF,
    ARRANGEMENTS,
    CONTEXTS,
    SequencePart,
    divides_heads,
    num_runs,
    repeats_of_key,
)


@given(degree=st.integers(1, 9), run=st.integers(1, 7), arrangement=st.sampled_from(ARRANGEMENTS))
def test_every_token_is_on_one_rank(degree, run, arrangement):
    length = run * num_runs(degree, arrangement)
    parts = [SequencePart(length, degree, rank, arrangement) for rank in range(degree)]
    places = [[place for run in part.runs for place in run] for part in parts]
    assert sorted(place for own in places for place in own) == list(range(length))
    assert all(own == sorted(own) and len(own) == part.num_tokens for own, part in zip(places, parts))


def test_a_zigzag_deals_out_runs_from_both_ends():
    assert SequencePart(24, 3, 1, "zigzag").runs == (range(4, 8), range(16, 20))
    assert SequencePart(24, 3, 1).runs == (range(8, 16),)
    assert SequencePart(24, arrangement="zigzag").runs == (range(24),)


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
        ((8, 2, 0, "striped"), "contiguous or zigzag"),
    ],
)
def test_what_cannot_be_is_refused(choices, word):
    with pytest.raises(PlanError, match=word):
        SequencePart(*choices)


def test_every_kind_of_context_parallelism_has_an_arrangement():
    assert {ARRANGEMENT_OF[context] for context in CONTEXTS} == set(ARRANGEMENTS)


def test_keys_are_repeated_where_there_are_fewer_than_ranks():
    assert [repeats_of_key(32, 8, degree) for degree in (1, 2, 8, 16, 32)] == [1, 1, 1, 2, 4]
    for heads in ((32, 8, 3), (32, 8, 64), (12, 3, 4), (12, 8, 12)):
        with pytest.raises(PlanError, match="ulysses"):
            repeats_of_key(*heads)


def test_ulysses_divides_the_heads_that_tensor_parallelism_leaves():
    model = ModelSpec.decoder(2, 64, 8)
    assert divides_heads(model, 2, 4) and not divides_heads(model, 4, 4)


@pytest.mark.parametrize(("context", "multiple"), [("ring", 8), ("all_gather", 8), ("ring_contiguous", 4)])
def test_a_plan_is_refused_whose_sequences_are_no_whole_runs(context, multiple):
    """When it is made, not when it runs."""

    def made(length):
        return Plan.of(
            ModelSpec.decoder(2, 64, 4), Cluster.detect(4), Workload(1, length), cp=4, context=context
        )

    assert made(5 * multiple).cp == 4
    with pytest.raises(PlanError, match=f"multiple of {multiple}"):
        made(5 * multiple + multiple // 2)
