"""Causal self-attention of queries, keys and values that are there by heads, values of another width than keys.

Shapes: B samples, S tokens, H heads, D numbers of a query and a key, V numbers of a value, N = B H.

On CPU in float32 and float64 block by block of queries, as `causal_attention`; elsewhere torch's kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import BLOCK_TOKENS, attend_backward, probabilities
from meshwright.executor.ops.attention.document_mask import DocumentMask


def head_attention(
    query_BHSD: Tensor, key_BHSD: Tensor, value_BHSV: Tensor, documents: DocumentMask | None = None
) -> Tensor:
    """Attention output [B, S, H V]. Queries are scaled and, as keys, turned already. `documents`: a token sees those of its
    own document only.
    """
    is_blocked = query_BHSD.device.type == "cpu" and query_BHSD.dtype in (torch.float32, torch.float64)
    if is_blocked:
        heads = (x.flatten(0, 1).contiguous() for x in (query_BHSD, key_BHSD, value_BHSV))
        out_NSV: Tensor = _HeadAttention.apply(*heads, documents)  # type: ignore[no-untyped-call]
        out_BHSV = out_NSV.view_as(value_BHSV)
    else:
        mask = None if documents is None else documents.visible()
        out_BHSV = F.scaled_dot_product_attention(
            query_BHSD, key_BHSD, value_BHSV, mask, is_causal=mask is None, scale=1.0
        )
    return out_BHSV.transpose(1, 2).flatten(2)


class _HeadAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_NSD: Tensor, key_NSD: Tensor, value_NSV: Tensor, documents: DocumentMask | None
    ) -> Tensor:
        ctx.save_for_backward(query_NSD, key_NSD, value_NSV)
        ctx.documents = documents
        out_NSV, num_tokens = torch.empty_like(value_NSV), key_NSD.shape[1]
        for low in range(0, num_tokens, BLOCK_TOKENS):
            high = min(low + BLOCK_TOKENS, num_tokens)
            first = 0 if documents is None else documents.first_key(low)
            p = probabilities(query_NSD, key_NSD, low, high, 1, documents)
            out_NSV[:, low:high] = torch.bmm(p, value_NSV[:, first:high])
        return out_NSV

    @staticmethod
    def backward(ctx: Any, dout_NSV: Tensor) -> tuple[Tensor | None, ...]:
        query_NSD, key_NSD, value_NSV = ctx.saved_tensors
        gradients = attend_backward(query_NSD, key_NSD, value_NSV, dout_NSV.contiguous(), 1, ctx.documents)
        return *gradients, None
