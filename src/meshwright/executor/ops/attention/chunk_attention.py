"""Attention of a chunk of sequences to the keys and values of all chunks up to it, each of which is a block of its own.

Shapes: B samples, s tokens of this chunk, m of another, H query and K key-value heads, D numbers of a head. Blocks are those
of `PartAttention`, [2, B, m, K, D] (or with values of another width [1, B, m, K, D + V]).

Nothing is copied into one block: queries see all keys of an earlier chunk, a rectangle, and their own as a triangle, so all
chunks together compute every visible pair once. The backward gives every block its own gradient, a term of a sum over the
chunks that read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import AttentionState, PartAttention
from meshwright.specs.sequence.sequence_part import SequenceRun


def chunk_attention(
    query: Tensor, blocks: Sequence[Tensor], chunk: SequenceRun, mask: DocumentMask | None = None
) -> Tensor:
    """Attention output [B, s, H D] of the queries [B, s, H, D] of a chunk to the blocks of all chunks up to it, in order;
    differentiable. `mask`: documents and window of the whole sequence."""
    return _ChunkAttention.apply(chunk, mask, query, *blocks)  # type: ignore[no-untyped-call, no-any-return]


def _placed(blocks: Sequence[Tensor], sequence_length: int) -> Iterator[tuple[Tensor, SequenceRun]]:
    """Every block with the tokens that it is of: one behind the other from the first."""
    first = 0
    for block in blocks:
        yield block, SequenceRun(sequence_length, block.shape[2], first)
        first += block.shape[2]


class _ChunkAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chunk: SequenceRun, mask: DocumentMask | None, query: Tensor, *blocks: Tensor
    ) -> Tensor:
        ctx.chunk, ctx.mask = chunk, mask
        attention, state = PartAttention(chunk), None
        for block, keys in _placed(blocks, chunk.sequence_length):
            state = attention.attend(query, block, state, keys, mask)
        assert isinstance(state, AttentionState), "its own block is among them"
        output: Tensor = attention.finished(state, query.dtype)
        ctx.save_for_backward(query, output, state.sums_BHs, *blocks)
        return output

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, output, sums, *blocks = ctx.saved_tensors
        attention = PartAttention(ctx.chunk)
        query_gradient, gradients = attention.gradients_of(query), [attention.gradients_of(x) for x in blocks]
        for (block, keys), own in zip(_placed(blocks, ctx.chunk.sequence_length), gradients, strict=True):
            attention.attend_backward(
                query, block, output, sums, output_gradient, query_gradient, own, keys, ctx.mask
            )
        return None, None, query_gradient.to(query.dtype), *(x.to(query.dtype) for x in gradients)
