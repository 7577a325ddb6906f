"""Blocks as tables: each kind once, whatever their order, and a table that leaves a layer out is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import ModelSpec, SpecError, load_model
from meshwright.specs.model.block import Attention, BlockSpec, Experts, FeedForward, merged_runs
from meshwright.specs.model.block_table import read_blocks, written_blocks

KINDS = tuple(
    BlockSpec(Attention(4, 2, 8, window=window), feed_forward)
    for window in (0, 4)
    for feed_forward in (FeedForward(16), FeedForward(16, activation="gelu"), Experts(4, 2, 16, 8))
)


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
