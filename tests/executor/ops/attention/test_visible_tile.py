"""Rectangles of visible pairs: every one once, nothing else, and the same work for all ranks of a zigzag."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executor.context_parallel import parts_of, random_starts
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.executor.ops.attention.visible_tile import Tile, visible_tiles
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.sequence.packed_part import PackedPart
from meshwright.specs.sequence.sequence_part import (
    ARRANGEMENTS,
    Arrangement,
    OwnTokens,
    SequencePart,
    most_attended_pairs,
    work_ratio,
)


def painted(tiles: tuple[Tile, ...], num_samples: int, queries: OwnTokens, keys: OwnTokens) -> Tensor:
    """How often every pair is computed and seen: [B, s, m]."""
    count = torch.zeros(num_samples, queries.num_tokens, keys.num_tokens, dtype=torch.int64)
    for tile in tiles:
        here = count[:, tile.rows, tile.keys]
        seen = torch.ones_like(here, dtype=torch.bool) if tile.visible is None else tile.visible
        here += seen.long().tril() if tile.is_causal else seen.long()
    return count


@given(
    degree=st.integers(1, 5),
    arrangement=st.sampled_from(ARRANGEMENTS),
    run=st.integers(1, 150),
    window=st.sampled_from([0, 1, 9, 300]),
    num_documents=st.sampled_from([0, 3, 40]),
    ranks=st.tuples(st.integers(0, 4), st.integers(0, 5)),
)
def test_every_visible_pair_is_seen_once(
    degree: int, arrangement: str, run: int, window: int, num_documents: int, ranks: tuple[int, int]
) -> None:
    length = run * 2 * degree
    queries = parts_of(length, degree, arrangement)[ranks[0] % degree]
    keys = queries.whole if ranks[1] == 5 else queries.of_rank(ranks[1] % degree)
    starts = random_starts(2, length, run, num_documents)
    documents = DocumentMask(starts) if num_documents else None
    mask = within_window(window, length, torch.device("cpu"), documents)
    i, j = token_places(queries)[:, None], token_places(keys)
    visible = (j <= i).expand(2, -1, -1)
    if window:
        visible = visible & (j > i - window)
    if num_documents:
        visible = visible & (j >= starts[:, token_places(queries), None])
    assert torch.equal(painted(visible_tiles(queries, keys, mask), 2, queries, keys), visible.long())


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    degree=st.integers(1, 5),
    ranks=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_of_packed_sequences_every_visible_pair_of_each_is_seen_once(
    lengths: list[int], degree: int, ranks: tuple[int, int]
) -> None:
    queries, keys = (PackedPart(tuple(lengths), degree, rank % degree) for rank in ranks)
    bounds = torch.tensor(queries.firsts[1:])
    sequence_of = torch.bucketize(torch.arange(queries.sequence_length), bounds, right=True)
    i, j = token_places(queries)[:, None], token_places(keys)
    visible = (j <= i) & (sequence_of[i] == sequence_of[j])
    tiles = visible_tiles(queries, keys)
    assert all(tile.visible is None for tile in tiles)
    assert torch.equal(painted(tiles, 1, queries, keys)[0], visible.long())


def test_a_zigzag_ring_has_three_cases() -> None:
    """Own keys: the triangle; of an earlier rank: its first half; of a later one: the second half of the queries."""
    parts = parts_of(24, 3, "zigzag")
    assert visible_tiles(parts[1], parts[1]) == (Tile(slice(0, 8), slice(0, 8), is_causal=True),)
    assert visible_tiles(parts[1], parts[0]) == (Tile(slice(0, 8), slice(0, 4)),)
    assert visible_tiles(parts[1], parts[2]) == (Tile(slice(4, 8), slice(0, 8)),)


def test_a_contiguous_ring_skips_later_ranks() -> None:
    parts = parts_of(12, 3, "contiguous")
    assert visible_tiles(parts[1], parts[0]) == (Tile(slice(0, 4), slice(0, 4)),)
    assert visible_tiles(parts[1], parts[1]) == (Tile(slice(0, 4), slice(0, 4), is_causal=True),)
    assert visible_tiles(parts[1], parts[2]) == ()


def test_a_stripe_is_a_triangle_with_every_rank() -> None:
    """Of the keys of later ranks a query sees one less than of its own."""
    parts = parts_of(12, 3, "stripe")
    for rank in (0, 1):
        assert visible_tiles(parts[1], parts[rank]) == (Tile(slice(0, 4), slice(0, 4), is_causal=True),)
    assert visible_tiles(parts[1], parts[2]) == (Tile(slice(1, 4), slice(0, 3), is_causal=True),)
    assert visible_tiles(*parts_of(2, 2, "stripe")) == ()


def test_a_window_leaves_out_ranks_that_are_behind_it() -> None:
    parts = parts_of(512, 4, "contiguous")
    mask = within_window(100, 512, torch.device("cpu"), None)
    assert visible_tiles(parts[3], parts[1], mask) == ()
    (tile,) = visible_tiles(parts[3], parts[2], mask)
    assert tile.keys == slice(29, 128)  # the first query, at 384, sees from 285 on


def pairs(part: SequencePart) -> int:
    """What a rank computes over a ring."""
    found = 0
    for step in range(part.degree):
        for tile in visible_tiles(part, part.source(step)):
            rows, keys = tile.rows.stop - tile.rows.start, tile.keys.stop - tile.keys.start
            found += rows * (rows + 1) // 2 if tile.is_causal else rows * keys
    return found


@pytest.mark.parametrize("degree", [2, 4, 8])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_what_ranks_compute_is_what_prices_say(arrangement: Arrangement, degree: int) -> None:
    """Every pair once, and the busiest rank by the ratio that `most_attended_pairs` prices: 1 of a zigzag."""
    parts = parts_of(64 * degree, degree, arrangement)
    found = [pairs(part) for part in parts]
    assert sum(found) == 64 * degree * (64 * degree + 1) // 2
    assert max(found) == most_attended_pairs(parts[0])
    assert max(found) * degree / sum(found) == work_ratio(parts[0])


def test_without_an_order_all_pairs_are_one_rectangle() -> None:
    queries, keys = parts_of(12, 2, "contiguous")
    assert visible_tiles(queries, keys, is_causal=False) == (Tile(slice(0, 6), slice(0, 6)),)
