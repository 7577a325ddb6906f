"""RMSNorm whose weight gradient can be computed later than its input gradient.

Shapes: x is [..., E], normalised over E; T all leading dimensions together.

    y  = x * r * w,   r = 1 / sqrt(mean(x^2) + epsilon)
    dx = r * (w dy - x^ mean(w dy x^)),   x^ = x * r
    dw = sum over T of dy x^
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

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward
_LOW_PRECISION = (torch.bfloat16, torch.float16)


def rms_norm(x: Tensor, weight_E: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight, of the same shape; 16-bit inputs are normalised in float32."""
    queue = registered_queue(weight_E)
    return _RMSNorm.apply(x, weight_E, epsilon, queue)  # type: ignore[no-untyped-call, no-any-return]


def _forward(x: Tensor, weight_E: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """y and the reciprocal root mean square r [..., 1]."""
    wide = torch.float32 if x.dtype in _LOW_PRECISION else x.dtype
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    r = norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    y = torch.mul(x, r).mul_(weight_E)
    return (y if y.dtype == x.dtype else y.to(x.dtype)), r


def _input_gradient(dy: Tensor, x: Tensor, r: Tensor, weight_E: Tensor) -> Tensor:
    """dx by the fused backward of LayerNorm with mean 0, which subtracts r mean(w dy) too much."""
    if x.dtype in _LOW_PRECISION:
        wdy, x_hat = dy.float() * weight_E.float(), x.float() * r
        return ((wdy - x_hat * (wdy * x_hat).mean(-1, keepdim=True)) * r).to(x.dtype)
    width = x.shape[-1]
    mask = [True, False, False]
    dx, _, _ = _layer_norm_backward(dy, x, [width], torch.zeros_like(r), r, weight_E, None, mask)
    excess = torch.mv(dy.reshape(-1, width), weight_E).view(r.shape).mul_(r).div_(width)
    return dx.add_(excess)  # type: ignore[no-any-return]


def accumulate_rms_norm(x: Tensor, dy: Tensor, r: Tensor, weight_E: Tensor) -> None:
    """Weight half: weight.grad += sum of dy * x * r over all tokens."""
    if x.dtype in _LOW_PRECISION:
        gradient = (dy.float() * x.float() * r).reshape(-1, x.shape[-1]).sum(0)
    else:
        mask = [False, True, False]
        mean = torch.zeros_like(r)
        _, gradient, _ = _layer_norm_backward(dy, x, [x.shape[-1]], mean, r, weight_E, None, mask)
    accumulate_into(weight_E, gradient)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_E: Tensor, epsilon: float, queue: WeightGradientQueue | None
    ) -> Tensor:
        y, r = _forward(x, weight_E, epsilon)
        ctx.save_for_backward(x, r)
        ctx.weight_E, ctx.queue = weight_E, queue
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, r = ctx.saved_tensors
        dx = _input_gradient(dy, x, r, ctx.weight_E) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            deliver(ctx.queue, accumulate_rms_norm, x, dy, r, ctx.weight_E)
        return dx, None, None, None


class SplitRMSNorm(nn.RMSNorm):
    """nn.RMSNorm (over one dimension, with a weight) with a split backward."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., E] -> the same shape."""
        epsilon = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return rms_norm(x, self.weight, epsilon)
