"""Matrix and Norm: products and normalisations of packed tokens, without a graph.

Shapes: T tokens, I inputs, O outputs, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.serving.packed_step import TokensOfAdapter


class Addition(NamedTuple):
    """What an adapter adds to a product: x A' B', with its scale in B. A is [r, I], B [O, r]."""

    a_rI: Tensor
    b_Or: Tensor


class Matrix:
    """x [T, I] -> x W' + bias [T, O], and what the adapters of the tokens add. ``additions``: by the adapters' numbers."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self.weight, self.bias = weight_OI, bias_O
        self.additions: dict[int, Addition] = {}

    def __call__(self, x_TI: Tensor, adapters: Sequence[TokensOfAdapter] = ()) -> Tensor:
        """With the bias."""
        return self._added(F.linear(x_TI, self.weight, self.bias), x_TI, adapters)

    def product(self, x_TI: Tensor, adapters: Sequence[TokensOfAdapter] = ()) -> Tensor:
        """Without the bias: a term of a sum over ranks, behind which it is added once."""
        return self._added(F.linear(x_TI, self.weight), x_TI, adapters)

    def _added(self, y_TO: Tensor, x_TI: Tensor, adapters: Sequence[TokensOfAdapter]) -> Tensor:
        for number, rows in adapters:
            addition = self.additions.get(number)
            if addition is None:  # the adapter leaves this matrix alone
                continue
            x = x_TI if rows is None else x_TI.index_select(0, rows)
            more = F.linear(F.linear(x, addition.a_rI), addition.b_Or)
            if rows is None:
                y_TO += more
            else:
                y_TO.index_add_(0, rows, more)
        return y_TO


class Norm:
    """By the root mean square, or with a bias by mean and variance as well (GPT-2); in the weight's format."""

    def __init__(self, weight_E: Tensor, bias_E: Tensor | None, epsilon: float) -> None:
        self.weight, self.bias, self.epsilon = weight_E, bias_E, epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """[..., E] -> the same shape."""
        if self.bias is None:
            wide = F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.epsilon)
            return wide.to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


def gated(inner: Tensor, has_gelu: bool = False) -> Tensor:
    """Gate by SiLU, or by GELU (tanh), times up: [..., 2 I] -> [..., I]."""
    gate, up = inner.chunk(2, -1)
    return (F.gelu(gate, approximate="tanh") if has_gelu else F.silu(gate)) * up
