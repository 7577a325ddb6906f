"""Cosine router (X-MoE): logits are cosines of narrowed tokens and embeddings of experts, over a temperature that is learned.

Shapes: T tokens, E hidden size, R routing dimension, X experts.

    p  = W x,   u = p / |p|,   v = w / |w|,   logits = u v^T / t        (Chi et al. 2022, arXiv 2204.09179)
    du = dlogits v / t,   dp = (du - u (u . du)) / |p|
    dv = dlogits^T u / t, dw = (dv - v (v . dv)) / |w|,   dt = -sum(dlogits logits) / t
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.executor.ops.linear import linear
from meshwright.executor.ops.weight_gradient_queue import (
    WeightGradientQueue,
    accumulate_into,
    deliver,
    registered_queue,
)

LEAST_LENGTH = 1e-12  # of what is divided by its length, as `torch.nn.functional.normalize` has it


class CosineRouter(nn.Module):
    """``weight`` [X, R]: embeddings of experts; ``projection`` [R, E]; ``temperature`` [1]."""

    def __init__(self, hidden_size: int, rank: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, rank))
        self.projection = nn.Parameter(torch.empty(rank, hidden_size))
        self.temperature = nn.Parameter(torch.empty(1))

    def forward(self, hidden_TE: Tensor) -> Tensor:
        """Logits [T, X]."""
        return cosine_logits(linear(hidden_TE, self.projection), self.weight, self.temperature)


def cosine_logits(narrow_TR: Tensor, embeddings_XR: Tensor, temperature: Tensor) -> Tensor:
    """Of tokens that have been narrowed; gradients of embeddings and temperature go to `.grad`, at once or by the queue."""
    queue = registered_queue(embeddings_XR, temperature)
    return _Cosine.apply(narrow_TR, embeddings_XR, temperature, queue)  # type: ignore[no-untyped-call, no-any-return]


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length one, and the lengths that they had."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(LEAST_LENGTH)
    return rows / length, length


def _across(gradient: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """Of rows by that of their units: nothing along them."""
    along = (gradient * unit).sum(1, keepdim=True)
    return (gradient - along * unit) / length


class _Cosine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        narrow_TR: Tensor,
        embeddings_XR: Tensor,
        temperature: Tensor,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        unit_TR, length_T1 = _unit(narrow_TR)
        logits_TX = unit_TR @ _unit(embeddings_XR)[0].t() / temperature
        # parameters are attributes, not saved tensors: see `ops.linear`
        ctx.save_for_backward(unit_TR, length_T1, logits_TX)
        ctx.embeddings_XR, ctx.temperature, ctx.queue = embeddings_XR, temperature, queue
        return logits_TX

    @staticmethod
    def backward(ctx: Any, dlogits_TX: Tensor) -> tuple[Tensor, None, None, None]:
        unit_TR, length_T1, logits_TX = ctx.saved_tensors
        scaled_TX = dlogits_TX / ctx.temperature
        embedding_XR, length_X1 = _unit(ctx.embeddings_XR)
        narrow_TR = _across(scaled_TX @ embedding_XR, unit_TR, length_T1)
        if ctx.embeddings_XR.requires_grad or ctx.temperature.requires_grad:
            # made now, of values that are gone when weights' gradients are computed later (ZeRO-3)
            found_XR = _across(scaled_TX.t() @ unit_TR, embedding_XR, length_X1)
            share = -(scaled_TX * logits_TX).sum().reshape(1)
            deliver(ctx.queue, accumulate_cosine, found_XR, share, ctx.embeddings_XR, ctx.temperature)
        return narrow_TR, None, None, None


def accumulate_cosine(found_XR: Tensor, share: Tensor, embeddings_XR: Tensor, temperature: Tensor) -> None:
    """Weight half: gradients of embeddings and temperature, which were made with those of the tokens."""
    for found, parameter in ((found_XR, embeddings_XR), (share, temperature)):
        if parameter.requires_grad:
            accumulate_into(parameter, found)
