"""Keys and values gathered from all ranks of a context-parallel group, in the order of the sequence; their gradients, back in
that of the ranks.

Shapes: P ranks, B samples, S tokens of a sequence, s = S / P of a rank, K key-value heads, D numbers of a head.

Every rank attends with its own queries to all keys (Llama 3, arXiv 2407.21783, section 3.3.2): one call of `PartAttention`
with ``part.whole``. The gradient of the gathered block is whole, a term of the sum over ranks: a reduce-scatter follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import PartAttention
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.sequence.sequence_part import SequencePart


def in_sequence_order(gathered: Tensor, part: SequencePart) -> Tensor:
    """[P, 2, B, s, K, D], the ranks' blocks as a gather leaves them -> one block of the whole sequence [2, B, S, K, D]."""
    _, two, batch, _, *head = gathered.shape
    block = gathered.new_empty((two, batch, part.sequence_length, *head))
    for rank, own in enumerate(gathered):
        block[:, :, token_places(part.of_rank(rank), gathered.device)] = own
    return block


def in_rank_order(block: Tensor, part: SequencePart) -> Tensor:
    """[2, B, S, K, D] -> [P, 2, B, s, K, D], equal parts along the first dimension, as a reduce-scatter takes them."""
    places = [token_places(part.of_rank(rank), block.device) for rank in range(part.degree)]
    return torch.stack([block[:, :, own] for own in places])


def gathered_attention(
    query: Tensor, gathered: Tensor, part: SequencePart, mask: DocumentMask | None = None
) -> Tensor:
    """Attention output [B, s, H D] of queries [B, s, H, D] to the ranks' blocks one behind the other, [2 P, B, s, K, D] (or
    with values of another width [P, B, s, K, D + V]), as a gather along the first dimension leaves them;
    differentiable. `mask`: documents and window of the whole sequence."""
    return _GatheredAttention.apply(query, gathered, part, mask)  # type: ignore[no-untyped-call, no-any-return]


class _GatheredAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, gathered: Tensor, part: SequencePart, mask: DocumentMask | None
    ) -> Tensor:
        ctx.attention, ctx.part, ctx.mask = PartAttention(part), part, mask
        block = in_sequence_order(torch.unflatten(gathered, 0, (part.degree, -1)), part)
        state = ctx.attention.attend(query, block, None, part.whole, mask)
        output: Tensor = ctx.attention.finished(state, query.dtype)
        ctx.save_for_backward(query, block, output, state.sums_BHs)
        return output

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, block, output, sums = ctx.saved_tensors
        attention: PartAttention = ctx.attention
        query_gradient, block_gradient = attention.gradients_of(query), attention.gradients_of(block)
        attention.attend_backward(
            query, block, output, sums, output_gradient, query_gradient, block_gradient, ctx.part.whole,
            ctx.mask,
        )  # fmt: skip
        by_rank = in_rank_order(block_gradient, ctx.part).flatten(0, 1)
        return query_gradient.to(query.dtype), by_rank.to(block.dtype), None, None
