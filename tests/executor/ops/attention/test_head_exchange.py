"""Ulysses: attention of whole sequences by some heads is that of all heads, and what is sent is what the formula says."""

from __future__ import annotations

import pytest
import torch
from tests.executor import context_parallel as cp
from tests.executor.ops.attention.test_part_attention import compared

from meshwright.executor.ops.attention.causal_attention import HeadLayout
from meshwright.executor.ops.attention.head_exchange import HeadExchange, by_token
from meshwright.specs.error import PlanError
from meshwright.specs.sequence.sequence_part import ARRANGEMENTS

DIVISIBLE = [(1, 4, 4), (2, 4, 2), (3, 3, 2), (4, 2, 2), (4, 2, 4), (4, 1, 8), (5, 5, 1), (6, 2, 6)]


@pytest.mark.parametrize(("degree", "kv_heads", "group_size"), DIVISIBLE)
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_heads_together_are_the_whole(
    degree: int, kv_heads: int, group_size: int, window: int, has_documents: bool, arrangement: str
) -> None:
    parts = cp.parts_of(12 * degree, degree, arrangement)
    layout = HeadLayout(kv_heads, group_size, 8, window)
    for found, expected in compared(cp.by_heads, parts, layout, torch.float64, has_documents):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_what_is_sent_is_two_and_two_rho_of_the_queries() -> None:
    """(2 + 2 rho) (P - 1) / P q, where q are a rank's queries and rho the key-value heads per query head."""
    degree, layout = 4, HeadLayout(4, 2, 8)
    exchange = HeadExchange(layout, degree)
    qkv = torch.randn(3, 5, layout.query_size + 2 * layout.key_size)
    parts, back = (
        exchange.by_rank(qkv),
        by_token(
            torch.randn(3, 5 * degree, exchange.local.query_size), tuple(cp.parts_of(20, 4, "contiguous"))
        ),
    )
    sent = sum(x[1:].numel() for x in (parts, back))
    q = 3 * 5 * layout.query_size
    assert sent == (2 + 2 / 2) * (degree - 1) / degree * q


def test_fewer_key_value_heads_than_ranks_are_repeated() -> None:
    exchange = HeadExchange(HeadLayout(2, 4, 4), 8)
    assert exchange.local == HeadLayout(1, 1, 4)
    parts = exchange.by_rank(torch.arange(2 * (8 + 4) * 4.0).view(1, 2, -1))
    keys = parts[:, 0, 0, 4:8]
    assert all(torch.equal(keys[rank], keys[0]) for rank in range(4))
    assert not torch.equal(keys[4], keys[0])


@pytest.mark.parametrize(("degree", "kv_heads", "group_size"), [(3, 4, 1), (4, 3, 4), (8, 2, 2)])
def test_heads_that_ranks_do_not_divide_are_refused(degree: int, kv_heads: int, group_size: int) -> None:
    with pytest.raises(PlanError, match=f"over {degree} ranks") as caught:
        HeadExchange(HeadLayout(kv_heads, group_size, 8), degree)
    assert "ring" in caught.value.next
