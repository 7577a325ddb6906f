"""Attention through a window: blocked and fused kernels equal a plain mask, also within documents."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout, _fused_attention, causal_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.sliding_window import within_window

NUM_TOKENS, TOLERANCE = 150, 1e-10  # more than two blocks of queries
STARTS = (0, 40, 41, 110)


def _starts() -> Tensor:
    """Two samples: documents at `STARTS`, and one document."""
    places = torch.arange(NUM_TOKENS)
    cut = torch.tensor([max(start for start in STARTS if start <= place) for place in places.tolist()])
    return torch.stack((cut, torch.zeros_like(cut)))


def _plain(qkv: Tensor, layout: HeadLayout, starts_BS: Tensor) -> Tensor:
    query, key, value = layout.cut(qkv)
    query = query.transpose(2, 3).reshape(2, -1, NUM_TOKENS, layout.head_dim)
    places = torch.arange(NUM_TOKENS)
    ages = places[:, None] - places
    seen = (ages >= 0) & (places >= starts_BS[:, :, None])
    if layout.window:
        seen &= ages < layout.window
    out = F.scaled_dot_product_attention(query, key, value, seen[:, None], enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("window", [0, 2, 63, 64, 65, 149, 150, 400])
@pytest.mark.parametrize("has_documents", [False, True])
def test_it_equals_a_plain_mask(window: int, has_documents: bool) -> None:
    layout = HeadLayout(2, 2, 4, window)
    generator = torch.Generator().manual_seed(window)
    shape = (2, NUM_TOKENS, layout.query_size + 2 * layout.key_size)
    qkv = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    starts_BS = _starts() if has_documents else torch.zeros(2, NUM_TOKENS, dtype=torch.int64)
    documents = DocumentMask(starts_BS) if has_documents else None
    expected = _plain(qkv, layout, starts_BS)
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (theirs,) = torch.autograd.grad((expected * weight).sum(), qkv)
    found = causal_attention(qkv, layout, None, documents)
    (ours,) = torch.autograd.grad((found * weight).sum(), qkv)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
    narrowed = within_window(window, NUM_TOKENS, qkv.device, documents)
    fused = _fused_attention(qkv, layout, None, narrowed)
    torch.testing.assert_close(fused, expected, rtol=0, atol=TOLERANCE)


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    assert within_window(0, 9, torch.device("cpu"), None) is None
    assert within_window(9, 9, torch.device("cpu"), None) is None
    assert within_window(8, 9, torch.device("cpu"), None) is not None
