"""Sublayers of a small transformer as functions of one flat weight, whole or cut over devices; what studies train.

Shapes: B samples, S tokens, E width, H heads, D numbers of a head, F feed-forward units, V vocabulary, N all numbers of a
sublayer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.randomness import keyed_generator, random_key

Sublayer = Callable[[Tensor, Tensor], Tensor]
KINDS = ("attention", "mlp")


@dataclass(frozen=True)
class SublayerSize:
    """Width E, heads H and feed-forward units F of the sublayers; of a device's part H and F are its share."""

    width: int
    num_heads: int
    head_dim: int
    num_units: int

    def part(self, num_parts: int) -> SublayerSize:
        """Of one of so many equal parts."""
        return SublayerSize(
            self.width, self.num_heads // num_parts, self.head_dim, self.num_units // num_parts
        )

    def shapes(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """Of the weights of a sublayer, in the order of its flat weight."""
        e, h, d = self.width, self.num_heads, self.head_dim
        if kind == "attention":
            return (e,), (3, h, d, e), (e, h, d)
        return (e,), (self.num_units, e), (e, self.num_units)

    def num_numbers(self, kind: str) -> int:
        """Of the flat weight."""
        return sum(math.prod(shape) for shape in self.shapes(kind))

    def split(self, kind: str, weight_N: Tensor) -> list[Tensor]:
        """Views of a flat weight."""
        shapes = self.shapes(kind)
        parts = torch.split(weight_N, [math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


# The dimension of every weight that is divided over devices; None: all have it.
DIVIDED = {"attention": (None, 1, 1), "mlp": (None, 0, 1)}


def part_of_weight(size: SublayerSize, kind: str, weight_N: Tensor, place: int, num_parts: int) -> Tensor:
    """The flat weight of one device: its heads or units."""
    parts = [
        weight if dim is None else weight.chunk(num_parts, dim)[place]
        for weight, dim in zip(size.split(kind, weight_N), DIVIDED[kind], strict=True)
    ]
    return torch.cat([part.reshape(-1) for part in parts])


def attention(size: SublayerSize, x_BSE: Tensor, weight_N: Tensor) -> Tensor:
    """Causal self-attention of what is normed; of a part, its heads' share of the sum."""
    norm_E, qkv_3HDE, out_EHD = size.split("attention", weight_N)
    normed = F.rms_norm(x_BSE, (size.width,), norm_E)
    q, k, v = torch.einsum("bse,chde->cbhsd", normed, qkv_3HDE).unbind()
    mixed_BHSD = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.einsum("bhsd,ehd->bse", mixed_BHSD, out_EHD)


def mlp(size: SublayerSize, x_BSE: Tensor, weight_N: Tensor) -> Tensor:
    """GELU feed-forward of what is normed; of a part, its units' share of the sum."""
    norm_E, up_FE, down_EF = size.split("mlp", weight_N)
    normed = F.rms_norm(x_BSE, (size.width,), norm_E)
    return F.gelu(normed @ up_FE.T) @ down_EF.T


def sublayer(size: SublayerSize, kind: str) -> Sublayer:
    """The function of (stream, flat weight) of a kind."""
    return partial({"attention": attention, "mlp": mlp}[kind], size)


def first_weight(
    size: SublayerSize, kind: str, *key: int | str, depth: int = 1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Drawn from its key: norms one, the rest normal with variance 1 / inputs, outputs less for a stack of `depth`."""
    generator = keyed_generator(random_key("sublayer", kind, *key))
    drawn = torch.randn(size.num_numbers(kind), generator=generator, dtype=torch.float64)
    norm_E, inner, outer = size.split(kind, drawn)
    norm_E.fill_(1.0)
    inner.mul_(size.width**-0.5)
    outer.mul_((depth * outer[0].numel()) ** -0.5)
    return drawn.to(dtype)


def run_stack(x_BSE: Tensor, sublayers: Sequence[Callable[[Tensor], Tensor]], delay: int = 1) -> Tensor:
    """A residual stack whose sublayers see outputs from `delay` sublayers back: 1 is the standard one, 2 a ladder."""
    pending: list[Tensor] = []
    for one in sublayers:
        if len(pending) == delay:
            x_BSE = x_BSE + pending.pop(0)
        pending.append(one(x_BSE))
    for output in pending:
        x_BSE = x_BSE + output
    return x_BSE
