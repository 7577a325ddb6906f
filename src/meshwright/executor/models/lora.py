"""A linear layer with a low-rank addition: y = x W' + b + (alpha / rank) x A' B' (LoRA, see `specs.adaptation`).

Shapes: I inputs, O outputs, R rank; W [O, I], A [R, I], B [O, R].

On one device of a tensor-parallel group the addition travels with its matrix: behind column-parallel W [O here, I] every
device has all of A and its rows of B, behind row-parallel W [O, I here] its columns of A and all of B. Both products are
terms of one sum, forward and backward, and what is whole, A or B, has on every device a part of its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.executor.ops.linear import SplitLinear
from meshwright.specs.model.adaptation import lora_scale
from meshwright.specs.model.model import ModelSpec


class LoraLinear(SplitLinear):
    """Both products have a split backward; which parameters train is said when they get their values."""

    def __init__(self, num_inputs: int, num_outputs: int, bias: bool, rank: int, scale: float) -> None:
        super().__init__(num_inputs, num_outputs, bias=bias)
        self.scale = scale
        self.lora_a = SplitLinear(num_inputs, rank, bias=False)
        self.lora_b = SplitLinear(rank, num_outputs, bias=False)

    def product(self, input: Tensor) -> Tensor:
        """[..., I] -> [..., O], without the bias."""
        return torch.add(super().product(input), self.lora_b(self.lora_a(input)), alpha=self.scale)

    def forward(self, input: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        return torch.add(super().forward(input), self.lora_b(self.lora_a(input)), alpha=self.scale)


def with_addition(model: ModelSpec, target: str, layer: SplitLinear) -> SplitLinear:
    """The layer, with an addition where the model has one for this matrix."""
    if target not in model.lora_targets:
        return layer
    has_bias = layer.bias is not None
    return LoraLinear(layer.in_features, layer.out_features, has_bias, model.lora_rank, lora_scale(model))
