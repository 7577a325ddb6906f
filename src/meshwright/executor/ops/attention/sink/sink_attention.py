"""Causal attention with sinks: of every head a learned number joins the softmax of its scores, and has no value (GPT-OSS).

Shapes: B samples, S tokens, D numbers of a head, K key-value heads, G query heads of each (H = K G), N = B K; rows of a block
of queries are (token, query head of the group), as in `causal_attention`.

Block by block of queries on every device, probabilities computed again in the backward: memory grows with S, not with S^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import BLOCK_TOKENS, HeadLayout, visible_scores
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.rotary import Rotation, rotate
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.executor.ops.weight_gradient_queue import (
    WeightGradientQueue,
    accumulate_into,
    deliver,
    registered_queue,
)


def sink_attention(
    qkv: Tensor, layout: HeadLayout, turn: Rotation, sinks_H: Tensor, documents: DocumentMask | None = None
) -> Tensor:
    """Attention output [B, S, H D] of the fused projection [B, S, (H + 2K) D]; `turn` and `documents` as of
    `causal_attention`."""
    documents = within_window(layout.window, qkv.shape[1], qkv.device, documents)
    query, key, value = layout.cut(qkv)
    query, key = rotate(query, turn.query.unsqueeze(-2)), rotate(key, turn.key)
    num_samples, num_tokens = qkv.shape[:2]
    queue = registered_queue(sinks_H)
    out: Tensor = _SinkAttention.apply(  # type: ignore[no-untyped-call]
        query.reshape(-1, num_tokens * layout.group_size, layout.head_dim),
        key.reshape(-1, num_tokens, layout.head_dim),
        value.reshape(-1, num_tokens, layout.head_dim),
        sinks_H, queue, layout, documents,
    )  # fmt: skip
    heads = out.view(num_samples, layout.num_kv_heads, num_tokens, -1)
    return heads.transpose(1, 2).reshape(num_samples, num_tokens, -1)


class _SinkAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks_H: Tensor, queue: WeightGradientQueue | None,
        layout: HeadLayout, documents: DocumentMask | None,
    ) -> Tensor:  # fmt: skip
        # the parameter is an attribute, not a saved tensor: see `ops.linear`
        ctx.save_for_backward(query, key, value)
        ctx.sinks_H, ctx.queue, ctx.layout, ctx.documents = sinks_H, queue, layout, documents
        out, size = torch.empty_like(query), layout.group_size
        for low in range(0, key.shape[1], BLOCK_TOKENS):
            high = min(low + BLOCK_TOKENS, key.shape[1])
            p, _ = _probabilities(query, key, low, high, ctx)
            out[:, low * size : high * size] = torch.bmm(p, value[:, _keys(documents, low, high)])
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        size, documents = ctx.layout.group_size, ctx.documents
        dquery, dkey, dvalue = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        dsinks_KG = torch.zeros_like(ctx.sinks_H).view(-1, size)
        for low in range(0, key.shape[1], BLOCK_TOKENS):
            high = min(low + BLOCK_TOKENS, key.shape[1])
            rows, keys = slice(low * size, high * size), _keys(documents, low, high)
            p, sink_p = _probabilities(query, key, low, high, ctx)
            dp = torch.bmm(dout[:, rows], value[:, keys].transpose(1, 2))
            mean = (dp * p).sum(-1, keepdim=True)  # a sink has no value, so no term of it
            dscores = p * (dp - mean)
            dquery[:, rows] = torch.bmm(dscores, key[:, keys])
            dkey[:, keys].baddbmm_(dscores.transpose(1, 2), query[:, rows])
            dvalue[:, keys].baddbmm_(p.transpose(1, 2), dout[:, rows])
            each = (sink_p * mean).view(-1, len(dsinks_KG), high - low, size)
            dsinks_KG -= each.sum((0, 2)).to(dsinks_KG.dtype)
        if ctx.sinks_H.requires_grad:
            deliver(ctx.queue, _accumulate_sinks, dsinks_KG.view(-1), ctx.sinks_H)
        return dquery, dkey, dvalue, None, None, None, None


def _keys(documents: DocumentMask | None, low: int, high: int) -> slice:
    """Keys that queries from `low` to `high` may see."""
    return slice(0 if documents is None else documents.first_key(low), high)


def _probabilities(query: Tensor, key: Tensor, low: int, high: int, ctx: Any) -> tuple[Tensor, Tensor]:
    """Of keys, [N, rows, keys], and of the sink, [N, rows, 1]; together they are one."""
    size, sinks_KG = ctx.layout.group_size, ctx.sinks_H.view(-1, ctx.layout.group_size)
    scores = visible_scores(query, key, low, high, size, ctx.documents)
    by_row_KR = sinks_KG.repeat(1, high - low)  # of every token all heads of the group
    sinks_NR1 = by_row_KR.repeat(len(query) // len(sinks_KG), 1)[:, :, None].to(scores.dtype)
    p = torch.softmax(torch.cat((scores, sinks_NR1), -1), -1)
    return p[..., :-1], p[..., -1:]


def _accumulate_sinks(dsinks_H: Tensor, sinks_H: Tensor) -> None:
    accumulate_into(sinks_H, dsinks_H)
