"""A linear layer with a low-rank addition: y = x W' + b + (alpha / rank) x A' B' (LoRA, see `specs.adaptation`).

Shapes: I inputs, O outputs, R rank; W [O, I], A [R, I], B [O, R].

On one device of a tensor-parallel group the addition travels with its matrix: behind column-parallel W [O here, I] every
device has all of A and its rows of B, behind row-parallel W [O, I here] its columns of A and all of B. Both products are
summed in one exchange, forward and backward, and what is whole, A or B, has on every device a part of its gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.models.tensor_parallel import (
    ColumnLinear,
    ParallelLinear,
    RowLinear,
    TensorParallel,
    accumulate_row,
)
from meshwright.executor.ops.linear import SplitLinear, accumulate_linear
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deliver, registered_queue
from meshwright.specs.model.adaptation import lora_scale
from meshwright.specs.model.model import ModelSpec


class LoraLinear(SplitLinear):
    """Both products have a split backward; which parameters train is said when they get their values."""

    def __init__(self, num_inputs: int, num_outputs: int, bias: bool, rank: int, scale: float) -> None:
        super().__init__(num_inputs, num_outputs, bias=bias)
        self.scale = scale
        self.lora_a = SplitLinear(num_inputs, rank, bias=False)
        self.lora_b = SplitLinear(rank, num_outputs, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        return torch.add(super().forward(input), self.lora_b(self.lora_a(input)), alpha=self.scale)


class _Matrices(NamedTuple):
    """The parameters of an adapted matrix on one device, which its backward reads and adds gradients to."""

    weight_OI: Tensor
    bias_O: Tensor | None
    a_RI: Tensor
    b_OR: Tensor
    scale: float

    def product(self, x: Tensor, narrow: Tensor) -> Tensor:
        """x W' + scale (x A') B', of which x A' is `narrow`; without the bias."""
        return F.linear(x, self.weight_OI).add_(F.linear(narrow, self.b_OR), alpha=self.scale)

    def narrow_gradient(self, dy: Tensor) -> Tensor:
        """The gradient of x A'."""
        return (dy @ self.b_OR).mul_(self.scale)

    def input_gradient(self, dy: Tensor, narrow_gradient: Tensor) -> Tensor:
        """The gradient of x, of what is here."""
        return (dy @ self.weight_OI).add_(narrow_gradient @ self.a_RI)

    def accumulate_addition(self, x: Tensor, narrow: Tensor, dy: Tensor, narrow_gradient: Tensor) -> None:
        """Weight half of A and B."""
        accumulate_linear(x, narrow_gradient, self.a_RI, None)
        accumulate_linear(narrow * self.scale, dy, self.b_OR, None)


class _AdaptedColumn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        a_RI: Tensor,
        matrices: _Matrices,
        parallel: TensorParallel,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        whole = parallel.entered(x)
        narrow = F.linear(whole, a_RI)
        ctx.save_for_backward(x, narrow)
        ctx.matrices, ctx.parallel, ctx.queue = matrices, parallel, queue
        y = matrices.product(whole, narrow)
        return y if matrices.bias_O is None else y.add_(matrices.bias_O)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, narrow = ctx.saved_tensors
        matrices, entering = ctx.matrices, ctx.parallel.entering(x)
        narrow_gradient, dx = matrices.narrow_gradient(dy), None
        if ctx.needs_input_grad[0]:
            dx = ctx.parallel.left(matrices.input_gradient(dy, narrow_gradient))
        deliver(ctx.queue, _accumulate_column, entering(), narrow, dy, narrow_gradient, matrices)
        return dx, None, None, None, None


def _accumulate_column(
    whole: Tensor, narrow: Tensor, dy: Tensor, narrow_gradient: Tensor, matrices: _Matrices
) -> None:
    accumulate_linear(whole, dy, matrices.weight_OI, matrices.bias_O)
    matrices.accumulate_addition(whole, narrow, dy, narrow_gradient)


class _AdaptedRow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        a_RI: Tensor,
        matrices: _Matrices,
        parallel: TensorParallel,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        narrow = F.linear(x, a_RI)  # of the inputs here: with B it is a part of the same sum
        ctx.save_for_backward(x, narrow)
        ctx.matrices, ctx.parallel, ctx.queue = matrices, parallel, queue
        y = parallel.left(matrices.product(x, narrow))
        return y if matrices.bias_O is None else y.add_(matrices.bias_O)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, narrow = ctx.saved_tensors
        matrices, whole = ctx.matrices, ctx.parallel.entered(dy)
        narrow_gradient, dx = matrices.narrow_gradient(whole), None
        if ctx.needs_input_grad[0]:
            dx = matrices.input_gradient(whole, narrow_gradient)
        deliver(ctx.queue, _accumulate_row, x, narrow, whole, dy, narrow_gradient, matrices)
        return dx, None, None, None, None


def _accumulate_row(
    x: Tensor, narrow: Tensor, whole: Tensor, dy: Tensor, narrow_gradient: Tensor, matrices: _Matrices
) -> None:
    accumulate_row(x, whole, dy, matrices.weight_OI, matrices.bias_O)
    matrices.accumulate_addition(x, narrow, whole, narrow_gradient)


class LoraParallel(ParallelLinear):
    """This device's part of an adapted matrix, made from its part of the matrix alone."""

    def __init__(self, layer: ParallelLinear, rank: int, scale: float) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, layer.parallel)
        self.scale = scale
        self.lora_a = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """The product with its addition, counted on the queue of its forward. The parameters are named apart: autograd sees
        of them only whether any of them trains."""
        a_RI, b_OR = self.lora_a.weight, self.lora_b.weight
        queue = registered_queue(self.weight, self.bias, a_RI, b_OR)
        matrices = _Matrices(self.weight, self.bias, a_RI, b_OR, self.scale)
        y: Tensor = self.function.apply(input, a_RI, matrices, self.parallel, queue)
        return y


class LoraColumn(LoraParallel):
    """This device's outputs of an adapted matrix that reads the residual stream: [B, s or S, I] -> [B, S, O]."""

    function = _AdaptedColumn


class LoraRow(LoraParallel):
    """This device's inputs of an adapted matrix that adds to the residual stream: [B, S, I] -> [B, s or S, O], summed; the
    bias is added once, behind the sum."""

    function = _AdaptedRow


def with_addition(model: ModelSpec, target: str, layer: nn.Linear) -> nn.Linear:
    """The layer, with an addition where the model has one for this matrix."""
    if target not in model.lora_targets:
        return layer
    rank, scale = model.lora_rank, lora_scale(model)
    if isinstance(layer, ColumnLinear):
        return LoraColumn(layer, rank, scale)
    if isinstance(layer, RowLinear):
        return LoraRow(layer, rank, scale)
    return LoraLinear(layer.in_features, layer.out_features, layer.bias is not None, rank, scale)
