"""Context-parallel attention in one process: the ranks are a list, and what they would send each other is handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.gathered_attention import in_rank_order, in_sequence_order
from meshwright.executor.ops.attention.head_exchange import HeadExchange, by_token, sequence_of
from meshwright.executor.ops.attention.part_attention import AttentionState, PartAttention, query_and_block
from meshwright.executor.ops.attention.rotary import Rotation
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.specs.sequence.sequence_part import SequencePart

Attend = Callable[..., list[Tensor]]


def parts_of(length: int, degree: int, arrangement: str) -> list[SequencePart]:
    """Of all ranks."""
    return [SequencePart(length, degree, rank, arrangement) for rank in range(degree)]  # type: ignore[arg-type]


def random_starts(num_samples: int, length: int, seed: int = 0, per_sequence: int = 4) -> Tensor:
    """Starts of documents [B, S], about so many a sequence, others in each."""
    generator = torch.Generator().manual_seed(seed)
    begins = torch.rand(num_samples, length, generator=generator) < per_sequence / length
    return torch.cummax(torch.where(begins, torch.arange(length), 0), 1).values


class _Ring(torch.autograd.Function):
    """All ranks' outputs [B, s, H D] of their queries and blocks, step by step as a ring would have them."""

    @staticmethod
    def forward(
        ctx: Any,
        parts: Sequence[SequencePart],
        mask: DocumentMask | None,
        is_causal: bool,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        degree = len(parts)
        ctx.attentions = [PartAttention(part, is_causal=is_causal) for part in parts]
        queries, blocks, outputs, states = inputs[:degree], inputs[degree:], [], []
        for rank, attention in enumerate(ctx.attentions):
            state: AttentionState | None = None
            for step in range(degree):
                source, before = attention.part.source(step), state
                state = attention.attend(queries[rank], blocks[source.rank], state, source, mask)
                assert before is None or state.output_BsHD is before.output_BsHD, "merged in place"
            assert state is not None
            outputs.append(attention.finished(state, queries[rank].dtype))
            states.append(state.sums_BHs)
        ctx.save_for_backward(*queries, *blocks, *outputs, *states)
        ctx.mask = mask
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        degree = len(gradients)
        queries, blocks, outputs, sums = (ctx.saved_tensors[i * degree : (i + 1) * degree] for i in range(4))
        query_gradients = [ctx.attentions[0].gradients_of(query) for query in queries]
        block_gradients = [ctx.attentions[0].gradients_of(block) for block in blocks]
        for rank, attention in enumerate(ctx.attentions):
            for step in range(degree):
                source = attention.part.source(step)
                attention.attend_backward(
                    queries[rank], blocks[source.rank], outputs[rank], sums[rank], gradients[rank],
                    query_gradients[rank], block_gradients[source.rank], source, ctx.mask,
                )  # fmt: skip
        found = (*query_gradients, *block_gradients)
        return None, None, None, *(x.to(queries[0].dtype) for x in found)


class _Gathered(torch.autograd.Function):
    """The same with blocks that are gathered, and gradients whose ranks' terms are summed and scattered."""

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[SequencePart], mask: DocumentMask | None, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        degree = len(parts)
        ctx.attentions, ctx.mask = [PartAttention(part) for part in parts], mask
        queries = inputs[:degree]
        whole = in_sequence_order(torch.stack(inputs[degree:]), parts[0])
        states = [
            attention.attend(query, whole, None, attention.part.whole, mask)
            for attention, query in zip(ctx.attentions, queries)
        ]
        outputs = [a.finished(state, whole.dtype) for a, state in zip(ctx.attentions, states)]
        ctx.save_for_backward(whole, *queries, *outputs, *(state.sums_BHs for state in states))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        degree, (whole, *rest) = len(gradients), ctx.saved_tensors
        queries, outputs, sums = (rest[i * degree : (i + 1) * degree] for i in range(3))
        query_gradients, terms = [], []
        for rank, attention in enumerate(ctx.attentions):
            query_gradients.append(attention.gradients_of(queries[rank]))
            block_gradient = attention.gradients_of(whole)
            attention.attend_backward(
                queries[rank], whole, outputs[rank], sums[rank], gradients[rank], query_gradients[rank],
                block_gradient, attention.part.whole, ctx.mask,
            )  # fmt: skip
            terms.append(in_rank_order(block_gradient, attention.part))
        return None, None, *(x.to(whole.dtype) for x in (*query_gradients, *torch.stack(terms).sum(0)))


def by_ring(
    qkvs: Sequence[Tensor],
    turns: Sequence[Rotation | None],
    layout: HeadLayout,
    parts: Sequence[SequencePart],
    documents: DocumentMask | None,
) -> list[Tensor]:
    """All ranks' attention outputs [B, s, H D] of their fused projections; `turns` at the places of their tokens."""
    pairs = [query_and_block(qkv, layout, turn) for qkv, turn in zip(qkvs, turns)]
    queries, blocks = zip(*pairs)
    mask = within_window(layout.window, parts[0].sequence_length, qkvs[0].device, documents)
    return list(_Ring.apply(parts, mask, True, *queries, *blocks))  # type: ignore[no-untyped-call]


def by_gather(
    qkvs: Sequence[Tensor],
    turns: Sequence[Rotation | None],
    layout: HeadLayout,
    parts: Sequence[SequencePart],
    documents: DocumentMask | None,
) -> list[Tensor]:
    """The same with gathered keys and values."""
    pairs = [query_and_block(qkv, layout, turn) for qkv, turn in zip(qkvs, turns)]
    queries, blocks = zip(*pairs)
    mask = within_window(layout.window, parts[0].sequence_length, qkvs[0].device, documents)
    return list(_Gathered.apply(parts, mask, *queries, *blocks))  # type: ignore[no-untyped-call]


def by_heads(
    qkvs: Sequence[Tensor],
    turns: Sequence[Rotation | None],
    layout: HeadLayout,
    parts: Sequence[SequencePart],
    documents: DocumentMask | None,
) -> list[Tensor]:
    """The same by Ulysses; `turns` are of the whole sequence."""
    exchange, group = HeadExchange(layout, len(parts)), tuple(parts)
    received = all_to_all([exchange.by_rank(qkv) for qkv in qkvs])
    attended = [
        causal_attention(sequence_of(own, group), exchange.local, turn, documents)
        for own, turn in zip(received, turns)
    ]
    returned = all_to_all([by_token(x, group) for x in attended])
    return [exchange.heads_of(parts) for parts in returned]


def all_to_all(sent: Sequence[Tensor]) -> list[Tensor]:
    """What every rank has behind an all-to-all of equal parts along the first dimension."""
    return [torch.stack([parts[rank] for parts in sent]) for rank in range(len(sent))]


def ring_of_pairs(pairs: Sequence[tuple[Tensor, Tensor]], parts: Sequence[SequencePart]) -> list[Tensor]:
    """Without a mask at all: every token sees all others."""
    queries, blocks = zip(*pairs)
    return list(_Ring.apply(parts, None, False, *queries, *blocks))  # type: ignore[no-untyped-call]
