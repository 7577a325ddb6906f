"""Tensor rules: which dimension of every parameter of a module tree is cut over devices.

*Column*: the outputs of a layer are cut, nothing is exchanged, what comes out is cut. *Gathered*: so too, and what comes out
is gathered, as a head's is. *Row*: the inputs are cut, what comes out is a term of a sum. *Table*: rows of a lookup are cut,
padded to a multiple; a term of a sum comes out. *Whole*: every device has it. *Unknown*: nothing is known of it, and it is
not run on several devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

Role = Literal["linear", "linear_in_out", "convolution", "table", "vector", "other"]
Cut = Literal["column", "gathered", "row", "table", "whole", "unknown"]


@dataclass(frozen=True)
class TreeParameter:
    """One parameter of a module tree.

    Args:
        name: in the state dict.
        shape: as it is stored: of a linear layer [outputs, inputs], the other way round with "linear_in_out", of a
            convolution [outputs, inputs, ...].
        role: what its layer does with it.
        path: of the layer that has it; "": what stands in front of the name's last dot.
        num_heads: of the attention whose heads the layer's outputs are; 0: it is none, or they are not known.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    itemsize: int = 4
    path: str = ""
    num_heads: int = 0

    @property
    def module(self) -> str:
        """Path of the layer that has it."""
        return self.path or self.name.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """Last name of that path, such as "c_proj"."""
        return self.module.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """Path of the module around the layer, such as "h.0.attn"."""
        return self.module.rpartition(".")[0]

    @property
    def num_outputs(self) -> int:
        """Of the weight of a layer."""
        return self.shape[1] if self.role == "linear_in_out" else self.shape[0]

    @property
    def num_inputs(self) -> int:
        """Of the weight of a layer."""
        return self.shape[0] if self.role == "linear_in_out" else self.shape[1]

    @property
    def num_bytes(self) -> int:
        """Of the whole parameter."""
        return self.itemsize * prod(self.shape)


Tree = tuple[TreeParameter, ...]


@dataclass(frozen=True)
class TensorRule:
    """What happens to one parameter.

    Args:
        dim: of its tensor, as it is stored, that is cut; None: every device has it whole.
        sections: sizes of the outputs that stand one behind the other, each cut by itself; (): one.
        rows: of that dimension with its padding; 0: there is none.
        is_shared: whole, though what it makes is used in parts, so that gradients have to be summed.
        reason: why it is whole or unknown.
    """

    name: str
    cut: Cut
    dim: int | None = None
    sections: tuple[int, ...] = ()
    rows: int = 0
    is_shared: bool = False
    reason: str = ""

    def local_shape(self, shape: tuple[int, ...], num_shards: int) -> tuple[int, ...]:
        """Of what a device has of a parameter with this shape, padding among it."""
        if self.dim is None:
            return shape
        return (
            *shape[: self.dim],
            (self.rows or shape[self.dim]) // num_shards,
            *shape[self.dim + 1 :],
        )


class TensorRules(Protocol):
    """What fills the slot `tensor_rules`: a rule for every parameter of a tree, by name."""

    def __call__(self, tree: Tree, num_shards: int) -> Mapping[str, TensorRule]:
        """For so many devices."""


def num_local_bytes(tree: Tree, rules: Mapping[str, TensorRule], num_shards: int) -> int:
    """Bytes of all parameters that one device has, padding among them."""
    return sum(one.itemsize * prod(rules[one.name].local_shape(one.shape, num_shards)) for one in tree)
