"""Attention without a mask, by torch's own kernel: of a sequence to itself (encoders) or to another one (cross attention).

Shapes: B samples, S queries, M keys, D numbers of a head, H query heads, K key-value heads.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout
from meshwright.executor.ops.attention.rotary import Rotation, rotate


def full_attention(qkv: Tensor, layout: HeadLayout, turn: Rotation | None) -> Tensor:
    """[B, S, H D] of the fused projection [B, S, (H + 2K) D]: every token sees all others. `turn` as in causal_attention."""
    query, key, value = layout.cut(qkv)
    scale = None
    if turn is not None:
        query, key, scale = rotate(query, turn.query[:, None]), rotate(key, turn.key), 1.0
    return _attended(query, key, value, layout, scale)


def cross_attention(query: Tensor, key_value: Tensor, layout: HeadLayout) -> Tensor:
    """[B, S, H D] of queries [B, S, H D] and the fused keys and values [B, M, 2 K D] of another sequence; no positions."""
    key, value = (
        half.view(*half.shape[:-1], layout.num_kv_heads, layout.head_dim).transpose(1, 2)
        for half in key_value.chunk(2, -1)
    )
    heads = query.view(*query.shape[:-1], layout.num_kv_heads, layout.group_size, layout.head_dim)
    return _attended(heads.transpose(1, 2), key, value, layout, None)


def _attended(query: Tensor, key: Tensor, value: Tensor, layout: HeadLayout, scale: float | None) -> Tensor:
    """query [B, K, S, G, D], key and value [B, K, M, D] -> [B, S, H D]."""
    rows = query.transpose(2, 3).reshape(query.shape[0], -1, query.shape[2], layout.head_dim)
    out = F.scaled_dot_product_attention(rows, key, value, scale=scale, enable_gqa=layout.group_size > 1)
    return out.transpose(1, 2).flatten(2)
