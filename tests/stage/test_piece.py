"""Refinement: pieces hold every layer once, in order, and their computes go up and down in the schedule's places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lowering.plans import DENSE, plan

from meshwright.specs import ModelSpec, stage_layers
from meshwright.stage.piece import (
    MAX_COMPUTES,
    has_vocabulary_share,
    num_pieces,
    piece_layers,
)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_pieces_hold_every_layer_once_in_order(given_stages):
    stages = stage_layers(tuple(blocks for blocks, _ in given_stages))
    counts = [min(count, max(1, blocks)) for blocks, count in given_stages]
    found = piece_layers(stages, counts)
    assert len(found) == sum(counts)
    blocks = [
        block for piece in found for block in range(piece.first_block, piece.first_block + piece.num_blocks)
    ]
    assert blocks == list(range(sum(blocks for blocks, _ in given_stages)))
    assert [piece.has_embedding for piece in found] == [True] + [False] * (len(found) - 1)
    assert [piece.has_head for piece in found] == [False] * (len(found) - 1) + [True]
    place = 0
    for stage, count in zip(stages, counts, strict=True):
        sizes = [piece.num_blocks for piece in found[place : place + count]]
        assert sum(sizes) == stage.num_blocks and max(sizes) - min(sizes) <= 1
        place += count


def test_sharded_parameters_are_gathered_block_by_block():
    assert num_pieces(plan(dp=2, pp=2, sharding="zero3")) == (2, 2)
    empty = plan(dp=2, pp=2, sharding="zero3", layers_per_stage=(4, 0))
    assert num_pieces(empty) == (4, 1)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"dp": 2, "overlap": ("reduce",)}, (2, 2)),
        ({"dp": 2, "overlap": ("gather",)}, (2, 2)),
        ({"cp": 2, "overlap": ("reduce",)}, (2, 2)),
        ({"dp": 2, "overlap": ("tp",)}, (1, 1)),
        ({"dp": 2, "overlap": ()}, (1, 1)),
        ({"overlap": ("reduce", "gather")}, (1, 1)),  # nobody to reduce with
    ],
)
def test_a_stage_is_whole_unless_something_runs_beside_it(choices, expected):
    assert num_pieces(plan(pp=2, **choices)) == expected


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_pieces_stay_within_the_limit_of_computes(recompute):
    model = ModelSpec.decoder(40, 64, 4)
    chosen = plan(model, pp=2, dp=2, batch=2 * 300, recompute=recompute)
    passes = {"none": 2, "full": 3}[recompute]
    (pieces, other) = num_pieces(chosen)
    assert pieces == other and 1 < pieces < 20
    computes = passes * chosen.num_microbatches * 2
    assert computes * pieces <= MAX_COMPUTES < computes * (pieces + 1)


@pytest.mark.parametrize("layers_per_stage", [(1, 1, 1, 1), (2, 2, 0, 0), (0, 2, 2, 0), (1, 1, 2, 0)])
def test_one_piece_a_device_has_the_share_of_a_split_vocabulary(layers_per_stage):
    chosen = plan(
        DENSE, pp=2, schedule="interleaved_1f1b", layers_per_stage=layers_per_stage, vocabulary="one_barrier"
    )
    pieces = piece_layers(chosen.stages(), [max(1, count) for count in layers_per_stage])
    assert sum(has_vocabulary_share(chosen, piece) for piece in pieces) == chosen.pp
    assert not any(has_vocabulary_share(chosen.changed(vocabulary="ends"), piece) for piece in pieces)
