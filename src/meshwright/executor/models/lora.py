"""A linear layer with a low-rank addition: y = x W' + b + (alpha / rank) x A' B' (LoRA, see `specs.adaptation`).

Shapes: I inputs, O outputs, R rank; W [O, I], A [R, I], B [O, R].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.executor.ops.linear import SplitLinear
from meshwright.specs.adaptation import lora_scale
from meshwright.specs.error import ExecutionError
from meshwright.specs.model import ModelSpec


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


def with_addition(model: ModelSpec, target: str, layer: nn.Linear) -> nn.Linear:
    """The layer, with an addition where the model has one for this matrix.

    Raises ExecutionError where the layer is only a device's part of a matrix.
    """
    if target not in model.lora_targets:
        return layer
    if type(layer) is not SplitLinear:
        raise ExecutionError(
            "low-rank additions with tensor parallelism",
            allowed="tp 1",
            next="use data or pipeline parallelism",
        )
    has_bias = layer.bias is not None
    return LoraLinear(layer.in_features, layer.out_features, has_bias, model.lora_rank, lora_scale(model))
