"""StageWeights: the parameters of one rank of a served model, read by our names, a tensor-parallel rank's part of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.serving.matrix import Matrix, Norm
from meshwright.executor.serving.served_model import ServedModel
from meshwright.specs.model.model import ModelSpec

EMBEDDING, HEAD = "embedding", "head"
_LAYER = re.compile(r"layers\.(\d+)\.")


class StageWeights:
    """What some layers need, and the embedding or the head where they are here."""

    def __init__(
        self,
        served: ServedModel,
        layers: range,
        shard: TensorShard,
        dtype: torch.dtype,
        device: torch.device,
        has_embedding: bool = True,
        has_head: bool = True,
    ) -> None:
        self.model = served.model
        is_here = _here(served.model, layers, has_embedding, has_head)
        self._tensors: dict[str, Tensor] = {}
        for name, shape in served.names.our_shapes().items():
            if is_here(name):
                self._tensors[name] = shard.local(name, served.source.value(name, shape, dtype)).to(device)

    def __contains__(self, module: str) -> bool:
        return f"{module}.weight" in self._tensors

    def tensor(self, module: str) -> Tensor:
        """The weight of a module."""
        return self._tensors[f"{module}.weight"]

    def optional(self, module: str) -> Tensor | None:
        """The weight of a module that not all layers have."""
        return self._tensors.get(f"{module}.weight")

    def matrix(self, module: str) -> Matrix:
        """A module that is a product."""
        return Matrix(self.tensor(module), self._tensors.get(f"{module}.bias"))

    def norm(self, module: str) -> Norm:
        """A module that is a norm."""
        return Norm(self.tensor(module), self._tensors.get(f"{module}.bias"), self.model.norm_epsilon)

    def optional_norm(self, module: str) -> Norm | None:
        """A norm that not all layers have."""
        return self.norm(module) if module in self else None

    @property
    def num_bytes(self) -> int:
        """Of all that is here; a tied head is the embedding."""
        return sum(tensor.nbytes for tensor in self._tensors.values())


def _here(model: ModelSpec, layers: range, has_embedding: bool, has_head: bool) -> Callable[[str], bool]:
    """Which parameters a stage has: the table of a tied model with the embedding, and once more with the head."""
    ends: Mapping[str, bool] = {
        EMBEDDING: has_embedding or (has_head and model.has_tied_embeddings),
        "positions": has_embedding,
        "final_norm": has_head,
        HEAD: has_head,
    }

    def is_here(name: str) -> bool:
        number = _LAYER.match(name)
        return int(number[1]) in layers if number else ends[name.split(".")[0]]

    return is_here
