"""Experts: an MLP each, of the rows that were sent to it; weight gradients may be computed later than input gradients.

Shapes: N rows sorted by expert, X experts here, P devices that sent rows, I inputs, O outputs, E hidden size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.expert.clamped_gate import clamped_gate
from meshwright.executor.ops.expert.dispatch import by_expert, inverse, reordered
from meshwright.executor.ops.expert.grouped_product import Products, products_of
from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.weight_gradient_queue import (
    WeightGradientQueue,
    accumulate_into,
    deliver,
    registered_queue,
)


class ExpertBiases(NamedTuple):
    """Of every expert here, [X, O] and [X, E]. `down_share`: of the second, where devices have terms of a sum."""

    gate_up_XO: Tensor
    down_XE: Tensor
    down_share: float = 1.0


def expert_mlp(
    tokens_NE: Tensor, counts: Tensor, gate_up_XOE: Tensor, down_XEI: Tensor, *, is_gated: bool = True,
    biases: ExpertBiases | None = None,
) -> Tensor:  # fmt: skip
    """Every row through its expert: [N, E] -> [N, E], in the order in which rows came.

    Args:
        counts: rows of every expert, [X]; or [P, X], where rows are sorted by the device they came from, then by expert.
        is_gated: gate_up is [X, 2I, E] and what is inside silu(gate) * up; otherwise [X, I, E] and GELU by tanh.
        biases: of both matrices; what is inside is then `clamped_gate` (GPT-OSS).
    """
    if counts.dim() == 1:
        return _sorted_mlp(tokens_NE, counts, gate_up_XOE, down_XEI, is_gated, biases)
    order_N = by_expert(counts)
    rows_NE = reordered(tokens_NE, order_N)
    returned_NE = _sorted_mlp(rows_NE, counts.sum(0), gate_up_XOE, down_XEI, is_gated, biases)
    return reordered(returned_NE, inverse(order_N))


def _sorted_mlp(
    tokens_NE: Tensor, counts_X: Tensor, gate_up_XOE: Tensor, down_XEI: Tensor, is_gated: bool,
    biases: ExpertBiases | None,
) -> Tensor:  # fmt: skip
    inner = grouped_linear(tokens_NE, counts_X, gate_up_XOE)
    if biases is not None:
        inner = clamped_gate(grouped_bias(inner, counts_X, biases.gate_up_XO, 1.0))
        return grouped_bias(
            grouped_linear(inner, counts_X, down_XEI), counts_X, biases.down_XE, biases.down_share
        )
    inner = gated_silu(inner) if is_gated else F.gelu(inner, approximate="tanh")
    return grouped_linear(inner, counts_X, down_XEI)


def grouped_bias(y_NO: Tensor, counts_X: Tensor, bias_XO: Tensor, share: float) -> Tensor:
    """Every expert's rows and `share` of its bias; its gradient goes to `.grad`, at once or by the queue. Devices that add a
    share each have the gradient of the sum, so all of the bias's."""
    return _GroupedBias.apply(y_NO, counts_X, bias_XO, share, registered_queue(bias_XO))  # type: ignore[no-untyped-call, no-any-return]


def grouped_linear(x_NI: Tensor, counts_X: Tensor, weight_XOI: Tensor) -> Tensor:
    """Every expert's rows times its matrix: [N, I] -> [N, O]; weight gradients go to `.grad`, at once or by the queue."""
    queue = registered_queue(weight_XOI)
    return _GroupedLinear.apply(x_NI, counts_X, weight_XOI, queue)  # type: ignore[no-untyped-call, no-any-return]


class _GroupedBias(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y_NO: Tensor,
        counts_X: Tensor,
        bias_XO: Tensor,
        share: float,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        ctx.save_for_backward(counts_X)
        ctx.bias_XO, ctx.queue = bias_XO, queue
        return y_NO + share * bias_XO.repeat_interleave(counts_X, 0)

    @staticmethod
    def backward(ctx: Any, dy_NO: Tensor) -> tuple[Tensor, None, None, None, None]:
        (counts_X,) = ctx.saved_tensors
        if ctx.bias_XO.requires_grad:
            # summed now: dy goes on as the gradient of the rows
            sums_XO = torch.stack([part.sum(0) for part in torch.split(dy_NO, counts_X.tolist())])
            deliver(ctx.queue, _accumulate_biases, sums_XO, ctx.bias_XO)
        return dy_NO, None, None, None, None


def _accumulate_biases(sums_XO: Tensor, bias_XO: Tensor) -> None:
    accumulate_into(bias_XO, sums_XO)


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NI: Tensor, counts_X: Tensor, weight_XOI: Tensor, queue: WeightGradientQueue | None
    ) -> Tensor:
        # Parameters are attributes, not saved tensors: see `ops.linear`.
        ctx.save_for_backward(x_NI if weight_XOI.requires_grad else None)
        ctx.products, ctx.weight_XOI, ctx.queue = products_of(counts_X, x_NI, weight_XOI), weight_XOI, queue
        y_NO: Tensor = ctx.products.forward(x_NI, weight_XOI)
        return y_NO

    @staticmethod
    def backward(ctx: Any, dy_NO: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x_NI,) = ctx.saved_tensors
        dx_NI = ctx.products.inputs(dy_NO, ctx.weight_XOI) if ctx.needs_input_grad[0] else None
        if x_NI is not None:
            deliver(ctx.queue, accumulate_experts, x_NI, dy_NO, ctx.products, ctx.weight_XOI)
        return dx_NI, None, None, None


def accumulate_experts(x_NI: Tensor, dy_NO: Tensor, products: Products, weight_XOI: Tensor) -> None:
    """Weight half: every expert's matrix gets its rows' products added; one without rows a gradient of zeros."""
    if weight_XOI.grad is None:
        weight_XOI.grad = torch.zeros_like(weight_XOI)
    products.add_weights(x_NI, dy_NO, weight_XOI.grad)
