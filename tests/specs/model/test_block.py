"""Kinds of blocks and windows: pairs of queries and keys counted one by one."""

from hypothesis import given
from hypothesis import strategies as st
from tests.specs.configs import DEEPSEEK_V2, GEMMA3, LLAMA

from meshwright.specs import model_from_config
from meshwright.specs.model.block import BlockKind, attended_pairs


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
