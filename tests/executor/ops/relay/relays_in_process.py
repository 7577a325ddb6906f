"""Token rings and rings of scores in one process: ranks are a list, and what they would send each other is handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import PartAttention, keys_and_values, query_and_block
from meshwright.executor.ops.attention.rotary import Rotation
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.executor.ops.relay.full_scores import FullScores, softmax, softmax_backward
from meshwright.executor.ops.relay.visiting_queries import (
    attend_backward,
    merge_packed,
    packed_rows,
    packed_state,
    rows_of,
)
from meshwright.specs.sequence.sequence_part import SequencePart


class _TokenRing(torch.autograd.Function):
    """All ranks' outputs [B, s, H D] of their queries and blocks; results come back in the order of the steps."""

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[SequencePart], mask: DocumentMask | None, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        degree = len(parts)
        queries, blocks = inputs[:degree], inputs[degree:]
        states, outputs = [], []
        for owner, part in enumerate(parts):
            attention = PartAttention(part)
            states.append(attention.attend(queries[owner], blocks[owner], None, part, mask))
            for step in range(1, degree):
                host = parts[(owner + step) % degree]
                found = attention.attend(queries[owner], blocks[host.rank], None, host, mask)
                merge_packed(states[-1], packed_state(found, queries[owner].dtype))
            outputs.append(attention.finished(states[-1], queries[owner].dtype))
        ctx.save_for_backward(*queries, *blocks, *outputs, *(state.sums_BHs for state in states))
        ctx.parts, ctx.mask = parts, mask
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        parts, degree = ctx.parts, len(gradients)
        queries, blocks, outputs, sums = (ctx.saved_tensors[i * degree : (i + 1) * degree] for i in range(4))
        zeros = PartAttention(parts[0]).gradients_of
        query_gradients, block_gradients = [zeros(x) for x in queries], [zeros(x) for x in blocks]
        for owner, part in enumerate(parts):
            packed = packed_rows(queries[owner], outputs[owner], sums[owner], gradients[owner])
            for host in parts:
                rows = rows_of(packed, queries[owner].shape[-1])
                query_gradients[owner] += attend_backward(
                    rows, part, blocks[host.rank], host, block_gradients[host.rank], ctx.mask
                )
        return None, None, *(x.to(queries[0].dtype) for x in (*query_gradients, *block_gradients))


class _Scores(torch.autograd.Function):
    """The same by whole rows of scores; terms of gradients of keys and values are summed over the ranks."""

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[SequencePart], mask: DocumentMask | None, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        degree = len(parts)
        queries, blocks = inputs[:degree], inputs[degree:]
        pairs = [keys_and_values(block, queries[0].shape[-1]) for block in blocks]
        ctx.owners, found, outputs = [FullScores(part, mask) for part in parts], [], []
        for own, query in zip(ctx.owners, queries):
            scores = own.empty_scores(query)
            for rank, (keys, _) in enumerate(pairs):
                own.score(query, keys, scores, rank)
            found.append(softmax(scores, query.dtype))
            total = torch.zeros(query.shape, dtype=scores.dtype)
            for rank, (_, values) in enumerate(pairs):
                own.weigh(found[-1], values, total, rank)
            outputs.append(total.flatten(2).to(query.dtype))
        ctx.save_for_backward(*queries, *blocks, *found)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        degree = len(gradients)
        queries, blocks, found = (ctx.saved_tensors[i * degree : (i + 1) * degree] for i in range(3))
        pairs = [keys_and_values(block, queries[0].shape[-1]) for block in blocks]
        to_queries, to_blocks = [torch.zeros_like(x) for x in queries], [torch.zeros_like(x) for x in blocks]
        for place, (own, query) in enumerate(zip(ctx.owners, queries)):
            given = gradients[place].reshape(query.shape)
            to_found = torch.empty_like(found[place])
            for rank, (_, values) in enumerate(pairs):
                to_blocks[rank][1] += own.weigh_backward(found[place], given, values, to_found, rank)
            to_scores = softmax_backward(found[place], to_found)
            for rank, (keys, _) in enumerate(pairs):
                to_blocks[rank][0] += own.score_backward(query, to_scores, keys, to_queries[place], rank)
        return None, None, *to_queries, *to_blocks


def by_token_ring(
    qkvs: Sequence[Tensor],
    turns: Sequence[Rotation | None],
    layout: HeadLayout,
    parts: Sequence[SequencePart],
    documents: DocumentMask | None,
) -> list[Tensor]:
    """All ranks' attention outputs [B, s, H D] of their fused projections; queries travel."""
    return _attended(_TokenRing, qkvs, turns, layout, parts, documents)


def by_scores(
    qkvs: Sequence[Tensor],
    turns: Sequence[Rotation | None],
    layout: HeadLayout,
    parts: Sequence[SequencePart],
    documents: DocumentMask | None,
) -> list[Tensor]:
    """The same by whole rows of scores."""
    return _attended(_Scores, qkvs, turns, layout, parts, documents)


def _attended(
    function: Any,
    qkvs: Sequence[Tensor],
    turns: Sequence[Rotation | None],
    layout: HeadLayout,
    parts: Sequence[SequencePart],
    documents: DocumentMask | None,
) -> list[Tensor]:
    queries, blocks = zip(*(query_and_block(qkv, layout, turn) for qkv, turn in zip(qkvs, turns)))
    mask = within_window(layout.window, parts[0].sequence_length, qkvs[0].device, documents)
    return list(function.apply(parts, mask, *queries, *blocks))
