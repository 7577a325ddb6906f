"""Linear layer whose weight gradient can be computed later than its input gradient.

Shapes: T tokens (all leading dimensions together), I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.fetched_again import FetchedAgain, again_of
from meshwright.executor.ops.weight_gradient_queue import (
    WeightGradientQueue,
    accumulate_into,
    deliver,
    registered_queue,
)


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x [..., I] @ weight.T + bias -> [..., O]; weight gradients go to `.grad`, at once or by the queue."""
    queue = registered_queue(weight_OI, bias_O)
    return _LinearFunction.apply(x, weight_OI, bias_O, queue, again_of(x))  # type: ignore[no-untyped-call, no-any-return]


def accumulate_linear(x: Tensor, dy: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> None:
    """Weight half: weight.grad += dy.T @ x and bias.grad += sum of dy, without a temporary where possible."""
    x_TI, dy_TO = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    if weight_OI.requires_grad:
        if weight_OI.grad is None:
            weight_OI.grad = torch.mm(dy_TO.t(), x_TI)
        else:
            weight_OI.grad.addmm_(dy_TO.t(), x_TI)
    if bias_O is not None and bias_O.requires_grad:
        accumulate_into(bias_O, dy_TO.sum(0))


class _LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        queue: WeightGradientQueue | None,
        again: FetchedAgain | None,
    ) -> Tensor:
        # Parameters are attributes, not saved tensors: a hook that packs saved tensors (offload) would
        # hand back a copy, and the gradient would be accumulated into a tensor nobody reads.
        is_trained = weight_OI.requires_grad or (bias_O is not None and bias_O.requires_grad)
        ctx.save_for_backward(x if is_trained and again is None else None)
        ctx.again = again if is_trained else None
        ctx.weight_OI, ctx.bias_O, ctx.queue = weight_OI, bias_O, queue
        return F.linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x = ctx.saved_tensors[0] if ctx.again is None else ctx.again.value
        weight_OI = ctx.weight_OI
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.mm(dy.reshape(-1, dy.shape[-1]), weight_OI).view(*dy.shape[:-1], -1)
        if x is not None:
            deliver(ctx.queue, accumulate_linear, x, dy, weight_OI, ctx.bias_O)
        return dx, None, None, None, None


def biased(x: Tensor, bias_O: Tensor) -> Tensor:
    """x [..., O] + bias, whose gradient may be computed later."""
    return _Biased.apply(x, bias_O, registered_queue(bias_O))  # type: ignore[no-untyped-call, no-any-return]


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias_O: Tensor, queue: WeightGradientQueue | None) -> Tensor:
        ctx.bias_O, ctx.queue = bias_O, queue
        return x + bias_O

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        if ctx.bias_O.requires_grad:
            # summed now: dy goes on as the gradient of x, to which others may add before the queue is run
            deliver(ctx.queue, _accumulate_bias, dy.reshape(-1, dy.shape[-1]).sum(0), ctx.bias_O)
        return dy, None, None


def _accumulate_bias(sum_O: Tensor, bias_O: Tensor) -> None:
    accumulate_into(bias_O, sum_O)


class SplitLinear(nn.Linear):
    """nn.Linear with a split backward."""

    def product(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], without the bias: a term of a sum, behind which it is added once."""
        return linear(input, self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return linear(input, self.weight, self.bias)
