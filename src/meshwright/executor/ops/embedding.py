"""Embedding lookup whose weight gradient can be computed later than its backward.

Shapes: T tokens (all leading dimensions together), V vocabulary, E width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deliver, registered_queue


def embedding(tokens: Tensor, weight_VE: Tensor, padding_index: int | None = None) -> Tensor:
    """Rows of `weight_VE` [V, E] for integer tokens [...] -> [..., E]; row `padding_index` never trains."""
    queue = registered_queue(weight_VE)
    return _Embedding.apply(tokens, weight_VE, padding_index, queue)  # type: ignore[no-untyped-call, no-any-return]


def accumulate_embedding(tokens: Tensor, dy: Tensor, weight_VE: Tensor, padding_index: int | None) -> None:
    """Weight half: each token's output gradient is added to its row of weight.grad."""
    tokens_T, dy_TE = tokens.reshape(-1), dy.reshape(-1, dy.shape[-1])
    if padding_index is not None:
        keep_T = tokens_T != padding_index
        tokens_T, dy_TE = tokens_T[keep_T], dy_TE[keep_T]
    if weight_VE.grad is None:
        weight_VE.grad = torch.zeros_like(weight_VE)
    # index_add_ touches the rows that occur; the dense backward of torch touches the whole table.
    weight_VE.grad.index_add_(0, tokens_T, dy_TE)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight_VE: Tensor,
        padding_index: int | None,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight_VE, ctx.padding_index, ctx.queue = weight_VE, padding_index, queue
        return F.embedding(tokens, weight_VE)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None]:
        (tokens,) = ctx.saved_tensors
        deliver(ctx.queue, accumulate_embedding, tokens, dy, ctx.weight_VE, ctx.padding_index)
        return None, None, None, None


class SplitEmbedding(nn.Embedding):
    """nn.Embedding with a split backward."""

    def reset_parameters(self) -> None:
        """Nothing on the meta device, whose values are given later: PyTorch draws normal numbers there by importing its
        compiler, which takes a worker seconds."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Integer tokens [...] -> [..., embedding_dim]."""
        return embedding(input, self.weight, self.padding_idx)
