"""All parameters of a model of which a part was trained: frozen ones from where they came, additions added.

Shapes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from meshwright.executor.models.weights.initialisation import ParameterSource
from meshwright.executor.models.weights.parameter_map import parameter_shapes
from meshwright.specs.model.adaptation import LORA_A, LORA_B, lora_scale
from meshwright.specs.model.model import ModelSpec


class MergedParameters(Mapping[str, Tensor]):
    """All parameters of `model.base`, each made when it is asked for: what was `trained` (of any mapping), with additions
    added to their matrices, and of `source` what was frozen. In the dtype of what was trained.
    """

    def __init__(self, model: ModelSpec, trained: Mapping[str, Tensor], source: ParameterSource) -> None:
        self.model, self.trained, self.source = model, trained, source
        self.shapes = parameter_shapes(model)
        self.dtype = trained[next(iter(trained))].dtype

    def __getitem__(self, name: str) -> Tensor:
        given = self.trained[name] if name in self.trained else None
        value = self.source.value(name, self.shapes[name], self.dtype) if given is None else given
        module, _, attribute = name.rpartition(".")
        pair = [f"{module}.{part}.weight" for part in (LORA_A, LORA_B)]
        if attribute != "weight" or pair[0] not in self.trained:
            return value
        a_RI, b_OR = (self.trained[each] for each in pair)
        return torch.addmm(value, b_OR, a_RI, alpha=lora_scale(self.model))

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
