"""Blocks: each has one fate, whatever sequences and prefixes come and go; the tree finds what a list of prefixes finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.block.radix_tree import RadixTree
from meshwright.specs.error import SpecError

KEYS = st.lists(st.integers(0, 2), max_size=6)


@given(st.lists(KEYS, max_size=12), KEYS)
def test_the_tree_finds_the_longest_prefix(known: list[list[int]], asked: list[int]) -> None:
    tree, expected, next_block = RadixTree(), {}, 0
    for keys in known:
        blocks = []
        for length in range(1, len(keys) + 1):  # a sequence that found what is there, and made the others
            blocks.append(expected.setdefault(tuple(keys[:length]), next_block + length))
        next_block += len(keys) + 1
        tree.insert(keys, blocks)
    longest = [
        expected[tuple(asked[:length])]
        for length in range(1, len(asked) + 1)
        if tuple(asked[:length]) in expected
    ]
    assert tree.match(asked) == longest
    assert sorted(tree.blocks()) == sorted(expected.values())


def test_what_was_used_longest_ago_is_forgotten_first_from_its_end() -> None:
    tree = RadixTree()
    tree.insert("ab", [1, 2])
    tree.insert("acd", [1, 3, 4])
    tree.match("ab")
    assert tree.evict(1, lambda block: True) == [4]
    assert tree.evict(2, lambda block: True) == [3, 2]
    assert tree.match("ab") == [1]
    assert tree.evict(1, lambda block: False) == []


def test_behind_anothers_blocks_nothing_is_added() -> None:
    """Its holder would not hold what lies before, which could then not be forgotten although nobody has it."""
    tree = RadixTree()
    assert tree.insert("ab", [1, 2]) == [1, 2]
    assert tree.insert("abc", [7, 8, 9]) == []
    assert tree.insert("abc", [1, 2, 9]) == [9]


@given(st.data())
def test_blocks_are_free_held_or_cached(data: st.DataObject) -> None:
    pool = BlockPool(12, 4)
    holders: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        does = data.draw(st.sampled_from(["come", "go", "fork"]))
        if does == "come":
            keys = data.draw(KEYS)
            known = pool.match(keys)
            pool.share(known)
            need = max(len(keys) - len(known), 0) + data.draw(st.integers(0, 2))
            if need > pool.num_free:
                pool.give_back(known)
                continue
            blocks = known + pool.take(need)
            pool.keep(keys, blocks[: len(keys)])
            holders.append(blocks)
        elif holders and does == "go":
            pool.give_back(holders.pop(data.draw(st.integers(0, len(holders) - 1))))
        elif holders:
            blocks = list(data.draw(st.sampled_from(holders)))
            pool.share(blocks)
            holders.append(blocks)
        pool.check()
        assert pool.num_held == len({block for blocks in holders for block in blocks})
    for blocks in holders:
        pool.give_back(blocks)
    pool.check()
    assert pool.num_free == 12
    assert sorted(pool.take(12)) == list(range(12))


def test_a_pool_has_blocks() -> None:
    with pytest.raises(SpecError, match="at least one block"):
        BlockPool(0, 16)
