"""LayerNorm whose weight and bias gradients can be computed later than its input gradient.

x is [..., E] and is normalised over its last dimensions, those of `weight`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.executor.ops.weight_gradient_queue import (
    WeightGradientQueue,
    accumulate_into,
    deliver,
    registered_queue,
)

_backward = torch.ops.aten.native_layer_norm_backward


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, of the same shape as x."""
    queue = registered_queue(weight, bias)
    return _LayerNorm.apply(x, weight, bias, epsilon, queue)  # type: ignore[no-untyped-call, no-any-return]


def accumulate_layer_norm(
    x: Tensor, dy: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    """Weight half: weight.grad and bias.grad from the output gradient and the normalised input."""
    mask = [False, weight.requires_grad, bias is not None and bias.requires_grad]
    _, dweight, dbias = _backward(dy, x, list(weight.shape), mean, rstd, weight, bias, mask)
    if weight.requires_grad:
        accumulate_into(weight, dweight)
    if bias is not None and bias.requires_grad:
        accumulate_into(bias, dbias)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, list(weight.shape), weight, bias, epsilon)
        ctx.save_for_backward(x, mean, rstd)
        ctx.weight, ctx.bias, ctx.queue = weight, bias, queue
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, mean, rstd = ctx.saved_tensors
        weight, dx = ctx.weight, None
        if ctx.needs_input_grad[0]:
            mask = [True, False, False]
            dx, _, _ = _backward(dy, x, list(weight.shape), mean, rstd, weight, ctx.bias, mask)
        deliver(ctx.queue, accumulate_layer_norm, x, dy, mean, rstd, weight, ctx.bias)
        return dx, None, None, None, None


class SplitLayerNorm(nn.LayerNorm):
    """nn.LayerNorm (with a weight) with a split backward."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., *normalized_shape] -> the same shape."""
        return layer_norm(input, self.weight, self.bias, self.eps)
