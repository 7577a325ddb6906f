"""A module tree cut by tensor rules: its linear layers and tables become parts that exchange on a process group.

Shapes: B samples, S tokens, E width, V vocabulary (with padding), and what a device has of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.systems.planning.redco.module_tree import Role, Tree, TreeParameter
from meshwright.systems.planning.redco.named_models import HeadPlace, InOutLinear
from meshwright.systems.planning.redco.tensor_rule import TensorRule

SUMMED: Counter[str] = Counter()  # forward all-reduces by path of the layer; whoever counts clears it
MINUS_INFINITY = float("-inf")


def module_tree(model: nn.Module) -> Tree:
    """Names, shapes and roles of a module's parameters, each tied one once."""
    return tuple(
        TreeParameter(
            name, tuple(p.shape), _role(model.get_submodule(name.rpartition(".")[0]), p), p.itemsize
        )
        for name, p in model.named_parameters()
    )


def _role(module: nn.Module, parameter: Tensor) -> Role:
    if parameter.dim() == 1:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "table"
    if isinstance(module, nn.Linear):
        return "linear"
    # the transformers library has such a layer of its own
    return (
        "linear_in_out" if isinstance(module, InOutLinear) or type(module).__name__ == "Conv1D" else "other"
    )


def cut(parameter: Tensor, rule: TensorRule, rank: int, num_shards: int) -> Tensor:
    """What a device has of a parameter: of every section, its part; of what is padded, zeros behind the end."""
    if rule.dim is None:
        return parameter.detach().clone()
    dim, size = rule.dim, parameter.shape[rule.dim]
    if rule.rows:
        padding = [0, 0] * (parameter.dim() - 1 - dim) + [0, rule.rows - size]
        parameter, size = F.pad(parameter.detach(), padding), rule.rows
    sections = rule.sections or (size,)
    parts = torch.split(parameter.detach(), list(sections), dim)
    return torch.cat([part.chunk(num_shards, dim)[rank] for part in parts], dim).clone()


class _Copy(torch.autograd.Function):
    """The same forwards; backwards the sum over the devices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class _Sum(torch.autograd.Function):
    """The sum over the devices; backwards the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Gather(torch.autograd.Function):
    """Parts of the last dimension side by side; backwards the own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


def copied(x: Tensor) -> Tensor:
    """What every device has, on its way into parts."""
    return cast(Tensor, _Copy.apply(x))  # type: ignore[no-untyped-call]


def summed(x: Tensor, path: str) -> Tensor:
    """The sum of what the devices have; counted."""
    SUMMED[path] += 1
    return cast(Tensor, _Sum.apply(x))  # type: ignore[no-untyped-call]


def gathered(x: Tensor) -> Tensor:
    """What the devices have, side by side."""
    return cast(Tensor, _Gather.apply(x))  # type: ignore[no-untyped-call]


class PartLinear(nn.Module):
    """A device's part of a linear layer, by its rule."""

    def __init__(
        self, layer: nn.Module, path: str, rule: TensorRule, num_outputs: int, num_shards: int
    ) -> None:
        super().__init__()
        self.path, self.rule, self.num_outputs, self.num_shards = path, rule, num_outputs, num_shards
        self.is_reversed = not isinstance(layer, nn.Linear)
        self.weight, self.bias = layer.weight, getattr(layer, "bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """Column and gathered: outputs of this device, or all; row: the sum; shared: whole, gradients summed."""
        weight = cast(Tensor, self.weight.T if self.is_reversed else self.weight)
        bias = cast("Tensor | None", self.bias)
        if self.rule.cut == "row":
            total = summed(F.linear(x, weight), self.path)
            return total if bias is None else total + bias
        if self.rule.is_shared:
            weight, bias = copied(weight), None if bias is None else copied(bias)
        part = F.linear(copied(x), weight, bias)
        return gathered(part)[..., : self.num_outputs] if self.rule.cut == "gathered" else part


class PartTable(nn.Module):
    """A device's rows of a lookup; as a tied head, its share of the logits, gathered."""

    def __init__(self, table: nn.Embedding, path: str, num_rows: int, first_row: int) -> None:
        super().__init__()
        self.path, self.num_rows, self.first_row = path, num_rows, first_row
        self.weight = table.weight

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Rows of all tokens: those that other devices have come by the sum."""
        local = tokens_BS - self.first_row
        is_here = (local >= 0) & (local < len(self.weight))
        rows = self.weight[local.where(is_here, 0)] * is_here[..., None]
        return summed(rows, self.path)

    def logits(self, x_BSE: Tensor) -> Tensor:
        """Of all rows but the padding."""
        return gathered(copied(x_BSE) @ self.weight.T)[..., : self.num_rows]


def shard(model: nn.Module, rules: Mapping[str, TensorRule], rank: int, num_shards: int) -> nn.Module:
    """The same module with the parts of one device, changed in place."""
    sizes = {one.name: one for one in module_tree(model)}
    for name, one in sizes.items():
        rule, path = rules[name], one.module
        layer = model.get_submodule(path)
        setattr(
            layer,
            name.rpartition(".")[2],
            nn.Parameter(cut(model.get_parameter(name), rule, rank, num_shards)),
        )
        if name.endswith(".weight") and (rule.dim is not None or rule.is_shared):
            _replace(model, path, _part(layer, one, rule, rank, num_shards))
    for module in model.modules():
        if isinstance(module, HeadPlace):
            _place_heads(module, rank)
    return model


def _part(layer: nn.Module, one: TreeParameter, rule: TensorRule, rank: int, num_shards: int) -> nn.Module:
    if isinstance(layer, nn.Embedding):
        return PartTable(layer, one.module, one.shape[0], rank * (rule.rows // num_shards))
    return PartLinear(layer, one.module, rule, one.num_outputs, num_shards)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _place_heads(module: HeadPlace, rank: int) -> None:
    """Heads of a device stand behind those of the devices before it; whole keys and values begin with the first."""
    for name, child in module.named_children():
        if not isinstance(child, PartLinear) or child.rule.cut != "column":
            continue
        first = rank * (child.rule.sections[0] // child.num_shards // module.head_dim)
        if name in ("q_proj", "c_attn"):
            module.first_query = first
        if name in ("k_proj", "c_attn"):
            module.first_key = first
