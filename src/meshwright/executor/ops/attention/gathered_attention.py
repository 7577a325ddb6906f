"""Keys and values gathered from all ranks of a context-parallel group, in the order of the sequence; their gradients, back in
that of the ranks.

Shapes: P ranks, B samples, S tokens of a sequence, s = S / P of a rank, K key-value heads, D numbers of a head.

Every rank attends with its own queries to all keys (Llama 3, arXiv 2407.21783, section 3.3.2): one call of `PartAttention`
with ``part.whole``. Of stripes a query sees P keys more than the one before it, so there the blocks of the ranks stay apart,
and each is a triangle. The gradient of the gathered block is whole, a term of the sum over ranks: a reduce-scatter follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import AttentionState, PartAttention
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
        ctx.part, ctx.mask, attention, state = part, mask, PartAttention(part), None
        blocks = _attended(torch.unflatten(gathered, 0, (part.degree, -1)), part)
        for block, keys in blocks:
            state = attention.attend(query, block, state, keys, mask)
        assert isinstance(state, AttentionState), "its own keys are among them"
        output: Tensor = attention.finished(state, query.dtype)
        ctx.save_for_backward(query, output, state.sums_BHs, *(block for block, _ in blocks))
        return output

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, output, sums, *blocks = ctx.saved_tensors
        part, attention = ctx.part, PartAttention(ctx.part)
        query_gradient, gradients = attention.gradients_of(query), [attention.gradients_of(x) for x in blocks]
        for block, gradient, keys in zip(blocks, gradients, _tokens_of(part), strict=True):
            attention.attend_backward(
                query, block, output, sums, output_gradient, query_gradient, gradient, keys, ctx.mask
            )
        is_apart = len(gradients) > 1
        by_rank = torch.stack(gradients) if is_apart else in_rank_order(gradients[0], part)
        return query_gradient.to(query.dtype), by_rank.flatten(0, 1).to(query.dtype), None, None


def _tokens_of(part: SequencePart) -> tuple[SequencePart, ...]:
    """Whose keys are attended to at once."""
    return tuple(map(part.of_rank, range(part.degree))) if part.arrangement == "stripe" else (part.whole,)


def _attended(gathered: Tensor, part: SequencePart) -> list[tuple[Tensor, SequencePart]]:
    """The blocks that are attended to at once, and whose they are."""
    blocks = gathered if part.arrangement == "stripe" else [in_sequence_order(gathered, part)]
    return list(zip(blocks, _tokens_of(part), strict=True))
