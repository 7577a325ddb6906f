"""Attention with documents: exact against a masked softmax, and never across a document, on both paths.

Shapes: B samples, S tokens, K key-value heads, G query heads per key-value head, D numbers of a head.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshwright.executor.ops.attention import causal_attention as attention
from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.rotary import Rotation, rotate, rotation, turned_at
from meshwright.specs.error import ExecutionError

TOLERANCE = 1e-10
HEAD_DIM = 8


def _starts(num_tokens: int, begins: list[list[int]]) -> Tensor:
    """Starts of documents from the places where documents begin, one list a sample."""
    rows = torch.zeros(len(begins), num_tokens, dtype=torch.int64)
    for row, places in zip(rows, begins):
        for place in sorted(set(places)):
            row[place:] = place
    return rows


def _plain(qkv: Tensor, layout: HeadLayout, turn: Rotation | None, starts_BS: Tensor) -> Tensor:
    """Softmax of all scores with a mask, written out: positions counted from every document's start."""
    num_tokens = qkv.shape[1]
    query, key, value = layout.cut(qkv)
    places_S = torch.arange(num_tokens)
    positions_BS = places_S - starts_BS
    if turn is None:
        query = query * layout.head_dim**-0.5
    else:
        query = rotate(query, turn.query[positions_BS][:, None, :, None])
        key = rotate(key, turn.key[positions_BS][:, None])
    scores = torch.einsum("bksgd,bktd->bksgt", query, key)
    is_seen = (places_S[None, None] <= places_S[None, :, None]) & (
        starts_BS[:, None] == starts_BS[:, :, None]
    )
    scores = scores.masked_fill(~is_seen[:, None, :, None], -math.inf)
    out = torch.einsum("bksgt,bktd->bksgd", torch.softmax(scores, -1), value)
    return out.transpose(1, 2).flatten(2)


def _value_and_gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)  # type: ignore[operator]
    y.backward(torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos())
    assert x.grad is not None
    return y, x.grad


@settings(max_examples=40)
@given(
    num_tokens=st.sampled_from([1, 7, 64, 65, 130, 200]),
    num_samples=st.integers(1, 3),
    group_size=st.sampled_from([1, 3]),
    is_rotary=st.booleans(),
    data=st.data(),
)
def test_both_paths_equal_the_masked_softmax(
    num_tokens: int, num_samples: int, group_size: int, is_rotary: bool, data: st.DataObject
) -> None:
    begins = [data.draw(st.lists(st.integers(0, num_tokens - 1), max_size=12)) for _ in range(num_samples)]
    starts_BS = _starts(num_tokens, begins)
    layout = HeadLayout(2, group_size, HEAD_DIM)
    torch.manual_seed(0)
    qkv = torch.randn(num_samples, num_tokens, layout.query_size + 2 * layout.key_size, dtype=torch.float64)
    turn = rotation(num_tokens, HEAD_DIM, 10_000.0, torch.float64) if is_rotary else None
    documents = DocumentMask(starts_BS)
    turned = None if turn is None else turned_at(turn, documents.positions_BS)
    expected = _value_and_gradient(lambda x: _plain(x, layout, turn, starts_BS), qkv)
    for path in (causal_attention, attention._fused_attention):
        found = _value_and_gradient(lambda x, path=path: path(x, layout, turned, documents), qkv)
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_a_document_alone_gives_the_same_output() -> None:
    layout, edges = HeadLayout(1, 2, HEAD_DIM), [0, 70, 71, 150]
    qkv = torch.randn(1, 150, layout.query_size + 2 * layout.key_size, dtype=torch.float64)
    turn = rotation(150, HEAD_DIM, 10_000.0, torch.float64)
    documents = DocumentMask(_starts(150, [edges[:-1]]))
    packed = causal_attention(qkv, layout, turned_at(turn, documents.positions_BS), documents)
    for low, high in zip(edges[:-1], edges[1:]):
        own = rotation(high - low, HEAD_DIM, 10_000.0, torch.float64)
        alone = causal_attention(qkv[:, low:high], layout, own)
        torch.testing.assert_close(packed[:, low:high], alone, rtol=0, atol=TOLERANCE)


def test_one_document_is_the_path_without_documents() -> None:
    layout = HeadLayout(2, 1, HEAD_DIM)
    qkv = torch.randn(2, 100, 3 * 2 * HEAD_DIM, dtype=torch.float64)
    turn = rotation(100, HEAD_DIM, 10_000.0, torch.float64)
    documents = DocumentMask(torch.zeros(2, 100, dtype=torch.int64))
    found = _value_and_gradient(
        lambda x: causal_attention(x, layout, turned_at(turn, documents.positions_BS), documents), qkv
    )
    for one, other in zip(found, _value_and_gradient(lambda x: causal_attention(x, layout, turn), qkv)):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("starts", [[[0, 2, 0]], [[1, 1, 1]], [[0, 1, 0]], [[0, 0, 1]], [0, 0]])
def test_starts_that_cannot_be(starts: list[list[int]]) -> None:
    with pytest.raises(ExecutionError, match="starts of documents"):
        DocumentMask(torch.tensor(starts))
