"""Which part of each tensor of a user's modules one device of a tensor-parallel group holds, as tensor rules say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.layout.tensor_shard import WHOLE, TensorShard, equal_part
from meshwright.specs.training.tensor_rule import TensorRule


@dataclass(frozen=True)
class RuleShard(TensorShard):
    """Device ``number`` of ``degree``. ``rules`` and ``shapes`` of the whole tensors by name."""

    rules: Mapping[str, TensorRule] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def check(self) -> None:
        """Rules leave whole what the degree does not divide."""

    def dim(self, name: str) -> int | None:
        """The dimension of a parameter that is divided; WHOLE where every device has all of it."""
        return self.rules[name].dim

    def whole_shape(self, name: str, local: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self.shapes[name]

    def ranges(self, name: str, whole: tuple[int, ...]) -> tuple[int, list[tuple[int, int]]] | None:
        """The dimension that is divided, and what is here of it, in order; WHOLE where the tensor is not divided."""
        rule = self.rules[name]
        if rule.dim is None:
            return WHOLE
        if rule.rows:
            each, size = rule.rows // self.degree, whole[rule.dim]
            return rule.dim, [(min(self.number * each, size), min((self.number + 1) * each, size))]
        sections = rule.sections or (whole[rule.dim],)
        starts = [sum(sections[:place]) for place in range(len(sections))]
        return rule.dim, [
            equal_part(start, size, self.number, self.degree)
            for start, size in zip(starts, sections, strict=True)
        ]

    def local(self, name: str, value: Tensor) -> Tensor:
        """What is here of a whole tensor; zeros behind the end of what is padded."""
        return cut(value, self.rules[name], self.number, self.degree)


def cut(parameter: Tensor, rule: TensorRule, number: int, num_shards: int) -> Tensor:
    """What a device has of a parameter: of every section, its part; of what is padded, zeros behind the end."""
    if rule.dim is None:
        return parameter.detach().clone()
    dim, size = rule.dim, parameter.shape[rule.dim]
    if rule.rows:
        padding = [0, 0] * (parameter.dim() - 1 - dim) + [0, rule.rows - size]
        parameter, size = F.pad(parameter.detach(), padding), rule.rows
    sections = rule.sections or (size,)
    parts = torch.split(parameter.detach(), list(sections), dim)
    return torch.cat([part.chunk(num_shards, dim)[number] for part in parts], dim).clone()
