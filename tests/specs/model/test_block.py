"""Kinds of blocks and windows: pairs of queries and keys counted one by one; blocks as tables, each kind once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.specs.configs import DEEPSEEK_V2, GEMMA3, LLAMA

from meshwright.specs import ModelSpec, SpecError, load_model, model_from_config
from meshwright.specs.model.block import (
    Attention,
    BlockKind,
    BlockSpec,
    Experts,
    FeedForward,
    attended_pairs,
    merged_runs,
    read_blocks,
    written_blocks,
)

KINDS = tuple(
    BlockSpec(Attention(4, 2, 8, window=window), feed_forward)
    for window in (0, 4)
    for feed_forward in (FeedForward(16), FeedForward(16, activation="gelu"), Experts(4, 2, 16, 8))
)


@given(st.integers(1, 50), st.integers(0, 60))
def test_pairs_are_those_that_a_mask_lets_through(sequence_length, window):
    mask = [
        (query, key)
        for query in range(sequence_length)
        for key in range(query + 1)
        if window == 0 or key > query - window
    ]
    assert attended_pairs(sequence_length, window) == len(mask)


def test_blocks_of_a_kind_are_counted_with_one_of_them():
    assert model_from_config(LLAMA).block_kinds(0, 3) == ((0, 3),)
    assert model_from_config(DEEPSEEK_V2).block_kinds(0, 4) == ((0, 1), (1, 3))
    gemma = model_from_config(GEMMA3)
    assert gemma.block_kinds(0, 7) == ((0, 6), (5, 1)) and gemma.block_kinds(5, 1) == ((5, 1),)
    assert (
        gemma.block_kind(5) == BlockKind(gemma.layers[5]) and gemma.block_kind(5).block.attention.window == 0
    )
    assert gemma.block_kind(6).block.attention.window == 6


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=40))
def test_blocks_in_any_order_come_back(layers):
    tables = written_blocks(layers)
    assert len(tables) == len(set(layers))
    assert read_blocks(tables, "here") == merged_runs(layers)


def test_layers_are_ranges():
    assert [table["layers"] for table in written_blocks(load_model("deepseek-v3").layers)] == ["0-2", "3-60"]
    assert written_blocks(load_model("gpt-oss-20b").layers)[1]["layers"].startswith("1, 3, 5, ")


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("0-2, 2-3", "layer 2 is also another block's"),
        ("0, 2-3", "no block is layer 1"),
        ("0-three", "numbers and ranges"),
        ("0-99999999999", "numbers and ranges"),
        ("", "numbers and ranges"),
        (4, "numbers and ranges"),
    ],
)
def test_layers_that_are_none_are_refused(layers, said):
    (table,) = written_blocks(ModelSpec.decoder(4, 64, 4).layers)
    with pytest.raises(SpecError, match=re.escape(said)):
        read_blocks([{**table, "layers": layers}], "here")


@pytest.mark.parametrize("tables", [None, 3, [3], [{"layers": "0"}], [{"layers": "0", "attention": 3}]])
def test_what_is_no_table_of_blocks_is_refused(tables):
    with pytest.raises(SpecError, match="here: block 0"):
        read_blocks(tables, "here")
