"""Splitting blocks over stages: nothing dropped, as even as can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import PlanError, split_layers, stage_layers


def test_the_remainder_goes_to_the_first_stages():
    assert split_layers(30, 4) == (8, 8, 7, 7)
    assert split_layers(32, 4) == (8, 8, 8, 8)


def test_more_stages_than_blocks_spares_the_ends():
    assert split_layers(2, 4) == (0, 1, 1, 0)
    assert split_layers(3, 4) == (1, 1, 1, 0)


@given(st.integers(1, 200), st.integers(1, 40))
def test_no_layer_is_dropped_and_stages_differ_by_at_most_one(num_layers, num_stages):
    counts = split_layers(num_layers, num_stages)
    assert sum(counts) == num_layers and len(counts) == num_stages
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_stages_hold_every_block_once_and_the_ends_their_layers(counts):
    stages = stage_layers(counts)
    blocks = [stage.first_block + i for stage in stages for i in range(stage.num_blocks)]
    assert blocks == list(range(sum(counts)))
    assert [stage.has_embedding for stage in stages] == [i == 0 for i in range(len(counts))]
    assert [stage.has_head for stage in stages] == [i == len(counts) - 1 for i in range(len(counts))]


@pytest.mark.parametrize("counts", [(), (3, -1)])
def test_nonsense_is_refused(counts):
    with pytest.raises(PlanError):
        stage_layers(counts)
    with pytest.raises(PlanError):
        split_layers(0, 4)
