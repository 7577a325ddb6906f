"""Cutting a module by tensor rules: what a device has of every parameter, and the layers that exchange."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from meshwright.executor.layout.rule_shard import cut
from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_tree import (
    HEAD_COUNTS,
    IN_PROJECTION,
    KEY_VALUE_COUNTS,
    module_tree,
)
from meshwright.executor.models.cut.part_layer import CutAttention, PartLinear, PartTable
from meshwright.specs.training.tensor_rule import TensorRule, TreeParameter


def cut_module(
    model: nn.Module, rules: Mapping[str, TensorRule], team: InnerTeam, prefix: str = ""
) -> nn.Module:
    """The module with the parts of one device, changed in place (one that is a layer itself is another one). `prefix`: of
    the names in `rules`."""
    tree = module_tree(model)
    for one in tree:
        owner, _, attribute = one.name.rpartition(".")
        value = cut(model.get_parameter(one.name), rules[prefix + one.name], team.number, team.degree)
        requires_grad = model.get_parameter(one.name).requires_grad
        setattr(model.get_submodule(owner), attribute, nn.Parameter(value, requires_grad))
    for one in tree:
        rule = rules[prefix + one.name]
        if rule.dim is None and not rule.is_shared:
            continue
        if one.layer == IN_PROJECTION and one.name.endswith(f"{IN_PROJECTION}_weight"):
            whole = model.get_submodule(one.parent)
            assert isinstance(whole, nn.MultiheadAttention), "nothing else has such a parameter"
            model = _replaced(model, one.parent, CutAttention(whole, team))
        elif one.name.endswith("weight"):
            if rule.cut == "column":
                _divide_heads(model.get_submodule(one.parent), team.degree)
            model = _replaced(
                model, one.module, _part(model.get_submodule(one.module), one, rule, prefix, team)
            )
    return model


def _part(layer: nn.Module, one: TreeParameter, rule: TensorRule, prefix: str, team: InnerTeam) -> nn.Module:
    if isinstance(layer, nn.Embedding):
        return PartTable(layer, prefix + one.module, one.shape[0], team)
    return PartLinear(layer, prefix + one.module, rule, one.num_outputs, team)


def _replaced(model: nn.Module, path: str, module: nn.Module) -> nn.Module:
    """The model with another module at a path; at "" that module."""
    if not path:
        return module
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
    return model


DIVIDED = (
    "_has_divided_heads"  # on a module whose counts are of one device already: it has several cut layers
)


def _divide_heads(around: nn.Module, degree: int) -> None:
    """What a module with cut layers says of its heads is of this device from now on."""
    if getattr(around, DIVIDED, False):
        return
    for name in (*HEAD_COUNTS, *KEY_VALUE_COUNTS):
        count = getattr(around, name, None)
        if isinstance(count, int):
            setattr(around, name, count // degree)
    setattr(around, DIVIDED, True)
