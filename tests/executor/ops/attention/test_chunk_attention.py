"""Attention of chunks is that of the whole sequence, outputs and all gradients, and looks at no pair twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executor import context_parallel as cp
from torch import Tensor

from meshwright.executor.meter.flop_meter import ATTENTION, BACKWARD_PRODUCTS, FORWARD_PRODUCTS, FlopMeter
from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.attention.chunk_attention import chunk_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import query_and_block
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.executor.ops.token_places import own_tokens
from meshwright.specs.sequence.sequence_part import SequenceRun


def runs_of(lengths: list[int]) -> list[SequenceRun]:
    """Chunks so long, one behind the other."""
    return [SequenceRun(sum(lengths), each, sum(lengths[:n])) for n, each in enumerate(lengths)]


def attended(qkv: Tensor, layout: HeadLayout, lengths: list[int], mask: DocumentMask | None) -> Tensor:
    """[B, S, H D] of a fused projection, chunk by chunk."""
    runs = runs_of(lengths)
    pairs = [query_and_block(own_tokens(qkv, run), layout, None) for run in runs]
    blocks = [block for _, block in pairs]
    return torch.cat(
        [chunk_attention(q, blocks[: n + 1], runs[n], mask) for n, (q, _) in enumerate(pairs)], 1
    )


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 3)]),
    window=st.sampled_from([0, 0, 1, 5, 37]),
    has_documents=st.booleans(),
)
def test_chunks_together_are_the_whole_sequence(
    lengths: list[int], heads: tuple[int, int], window: int, has_documents: bool
) -> None:
    length, layout = sum(lengths), HeadLayout(*heads, 8, window)
    torch.manual_seed(length)
    qkv = torch.randn(
        2, length, layout.query_size + 2 * layout.key_size, dtype=torch.float64
    ).requires_grad_()
    documents = DocumentMask(cp.random_starts(2, length, length)) if has_documents else None
    gradient = torch.randn(2, length, layout.query_size, dtype=torch.float64)
    expected = causal_attention(qkv, layout, None, documents)
    found = attended(qkv, layout, lengths, within_window(window, length, qkv.device, documents))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad(each, qkv, gradient)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [[8, 8], [4, 12], [12, 4], [4, 4, 8]], ids=str)
def test_every_visible_pair_is_looked_at_once(lengths: list[int]) -> None:
    length, layout = sum(lengths), HeadLayout(2, 2, 8)
    qkv = torch.randn(3, length, layout.query_size + 2 * layout.key_size).requires_grad_()
    meter = FlopMeter()
    with meter.in_thread():
        attended(qkv, layout, lengths, None).sum().backward()
    pairs, num_heads = length * (length + 1) / 2, 3 * 2 * 2
    assert meter.flops[ATTENTION] == 2 * (FORWARD_PRODUCTS + BACKWARD_PRODUCTS) * num_heads * 8 * pairs
