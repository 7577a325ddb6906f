"""Causal self-attention of a fused query-key-value projection, with rotary positions and grouped queries.

Shapes: B samples, S tokens, D numbers of a head, K key-value heads, G query heads per key-value head
(H = K G query heads), N = B K. The fused input is [B, S, (H + 2K) D]: queries, keys, values.
Inside, the rows of a query block are (token, query head of the group), so that a group is one product.

On CPU in float32 and float64 the products are made block by block of queries, with keys up to the block's
end only, and the probabilities are computed again in the backward: memory grows with S, not with S^2, and
at the sizes that train on a CPU it takes less time than torch's fused kernel (forward and backward 2.3
against 2.9 ms at S = 256, H = 4, D = 64 on one AVX-512 core). Elsewhere it is torch's
scaled_dot_product_attention. With documents a block also leaves out the keys before its first document.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.rotary import Rotation, as_pairs, rotate
from meshwright.executor.ops.attention.sliding_window import within_window

# Queries of a block: the best of 32, 64, 96, 128 and S in measurements at S = 128 to 512 on one thread.
BLOCK_TOKENS = 64


class HeadLayout(NamedTuple):
    """How a fused projection is cut: K key-value heads, G query heads each, D numbers of a head. A query sees the last
    `window` keys (0: all).
    """

    num_kv_heads: int
    group_size: int
    head_dim: int
    window: int = 0

    @property
    def query_size(self) -> int:
        """Width of all queries."""
        return self.num_kv_heads * self.group_size * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all keys, and of all values."""
        return self.num_kv_heads * self.head_dim

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of [B, S, (H + 2K) D]: query [B, K, S, G, D], key and value [B, K, S, D]."""
        sizes = [self.query_size, self.key_size, self.key_size]
        query, key, value = torch.split(qkv, sizes, -1)
        heads = (*qkv.shape[:-1], self.num_kv_heads)
        query = query.view(*heads, self.group_size, self.head_dim)
        return (
            query.transpose(1, 2),
            key.view(*heads, self.head_dim).transpose(1, 2),
            value.view(*heads, self.head_dim).transpose(1, 2),
        )


def causal_attention(
    qkv: Tensor, layout: HeadLayout, turn: Rotation | None, documents: DocumentMask | None = None
) -> Tensor:
    """Attention output [B, S, H D] of the fused projection [B, S, (H + 2K) D].

    `turn` has S positions (ops/rotary.py), or with documents those of `turned_at`; None where positions are not rotary.
    `documents`: a token sees those of its own document only.
    """
    documents = within_window(layout.window, qkv.shape[1], qkv.device, documents)
    if qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64):
        return _BlockedAttention.apply(qkv, layout, turn, documents)  # type: ignore[no-untyped-call, no-any-return]
    return _fused_attention(qkv, layout, turn, documents)


def _fused_attention(
    qkv: Tensor, layout: HeadLayout, turn: Rotation | None, documents: DocumentMask | None = None
) -> Tensor:
    """The same by torch's own kernels."""
    query, key, value = layout.cut(qkv)
    scale = None
    if turn is not None:
        query, key, scale = rotate(query, turn.query.unsqueeze(-2)), rotate(key, turn.key), 1.0
        # queries and keys are copies by now: no view shall keep the whole projection
        value = value.contiguous()
    num_heads = layout.num_kv_heads * layout.group_size
    query = query.transpose(2, 3).reshape(qkv.shape[0], num_heads, -1, layout.head_dim)
    mask = None if documents is None else documents.visible()
    out = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=layout.group_size > 1
    )
    return out.transpose(1, 2).flatten(2)


@lru_cache(maxsize=16)
def _future_mask(num_tokens: int, group_size: int, dtype: torch.dtype) -> Tensor:
    """-inf where a row (token, query head) may not see a key of its own block: [tokens * G, tokens]."""
    mask = torch.full((num_tokens, num_tokens), -math.inf, dtype=dtype).triu_(1)
    return mask.repeat_interleave(group_size, 0)


def _first_key(documents: DocumentMask | None, low: int) -> int:
    """The first key that the block from `low` sees."""
    return 0 if documents is None else documents.first_key(low)


def probabilities(
    query: Tensor, key: Tensor, low: int, high: int, group_size: int, documents: DocumentMask | None
) -> Tensor:
    """Softmax of the block's scores with all keys that it sees before `high`: [N, tokens * G, high - first key]."""
    return torch.softmax(visible_scores(query, key, low, high, group_size, documents), -1)


def visible_scores(
    query: Tensor, key: Tensor, low: int, high: int, group_size: int, documents: DocumentMask | None
) -> Tensor:
    """The scores that `probabilities` are of, -inf where a key is not seen."""
    first = _first_key(documents, low)
    rows = query[:, low * group_size : high * group_size]
    scores = torch.bmm(rows, key[:, first:high].transpose(1, 2))
    scores[:, :, low - first :].add_(_future_mask(high - low, group_size, scores.dtype).to(scores.device))
    if documents is not None:
        documents.hide(scores, low, high)
    return scores


def _heads_first(qkv: Tensor, layout: HeadLayout, turn: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
    """Contiguous scaled query [N, S G, D], key and value [N, S, D], turned to their positions."""
    query, key, value = layout.cut(qkv)
    if turn is None:
        turned_query, turned_key = query * layout.head_dim**-0.5, key
    else:
        turned_query, turned_key = qkv.new_empty(query.shape), qkv.new_empty(key.shape)
        torch.mul(as_pairs(query), turn.query.unsqueeze(-2), out=as_pairs(turned_query))
        torch.mul(as_pairs(key), turn.key, out=as_pairs(turned_key))
    num_rows, head_dim = query.shape[2] * layout.group_size, layout.head_dim
    # copies: of one sample they would be views, which keep the whole projection alive until the backward
    return (
        turned_query.reshape(-1, num_rows, head_dim),
        turned_key.reshape(-1, query.shape[2], head_dim).contiguous(),
        value.reshape(-1, query.shape[2], head_dim).contiguous(),
    )


def attend_backward(
    query: Tensor, key: Tensor, value: Tensor, dout: Tensor, group_size: int, documents: DocumentMask | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of scaled query, key and value, all of them [N, rows, D]."""
    dquery, dkey, dvalue = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    num_tokens = key.shape[1]
    if documents is not None:
        dkey.zero_()
        dvalue.zero_()
    # Last block first: without documents it reaches all keys, so it writes what the earlier blocks add to.
    for low in reversed(range(0, num_tokens, BLOCK_TOKENS)):
        high = min(low + BLOCK_TOKENS, num_tokens)
        rows, keys = slice(low * group_size, high * group_size), slice(_first_key(documents, low), high)
        p = probabilities(query, key, low, high, group_size, documents)
        dp = torch.bmm(dout[:, rows], value[:, keys].transpose(1, 2))
        dscores = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
        dquery[:, rows] = torch.bmm(dscores, key[:, keys])
        if high == num_tokens and documents is None:
            torch.bmm(p.transpose(1, 2), dout[:, rows], out=dvalue)
            torch.bmm(dscores.transpose(1, 2), query[:, rows], out=dkey)
        else:
            dvalue[:, keys].baddbmm_(p.transpose(1, 2), dout[:, rows])
            dkey[:, keys].baddbmm_(dscores.transpose(1, 2), query[:, rows])
    return dquery, dkey, dvalue


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, layout: HeadLayout, turn: Rotation | None, documents: DocumentMask | None
    ) -> Tensor:
        query, key, value = _heads_first(qkv, layout, turn)
        ctx.save_for_backward(query, key, value)
        ctx.layout, ctx.turn, ctx.documents = layout, turn, documents
        num_tokens, group_size = qkv.shape[1], layout.group_size
        out = torch.empty_like(query)
        for low in range(0, num_tokens, BLOCK_TOKENS):
            high = min(low + BLOCK_TOKENS, num_tokens)
            p = probabilities(query, key, low, high, group_size, documents)
            keys = slice(_first_key(documents, low), high)
            out[:, low * group_size : high * group_size] = torch.bmm(p, value[:, keys])
        out = out.view(-1, layout.num_kv_heads, num_tokens, group_size, layout.head_dim)
        return out.transpose(1, 2).reshape(*qkv.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None, None]:
        query, key, value = ctx.saved_tensors
        layout, turn = ctx.layout, ctx.turn
        heads = (*dout.shape[:-1], layout.num_kv_heads, layout.group_size, layout.head_dim)
        dout_rows = dout.reshape(heads).transpose(1, 2).reshape(query.shape)
        gradients = attend_backward(query, key, value, dout_rows, layout.group_size, ctx.documents)
        dqkv = dout.new_empty(*dout.shape[:2], layout.query_size + 2 * layout.key_size)
        dquery, dkey, dvalue = layout.cut(dqkv)
        from_query, from_key, from_value = (
            gradient.view(target.shape) for gradient, target in zip(gradients, (dquery, dkey, dvalue))
        )
        dvalue.copy_(from_value)
        if turn is None:
            torch.mul(from_query, layout.head_dim**-0.5, out=dquery)
            dkey.copy_(from_key)
        else:
            torch.mul(as_pairs(from_query), turn.query_back.unsqueeze(-2), out=as_pairs(dquery))
            torch.mul(as_pairs(from_key), turn.key_back, out=as_pairs(dkey))
        return dqkv, None, None, None
