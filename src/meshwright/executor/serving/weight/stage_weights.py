"""StageWeights: parameters of one rank of a served model, by our names; StageReader: reads them block by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard, layer_of
from meshwright.executor.models.weights.parameter_map import STACKED_MODULES
from meshwright.executor.serving.matrix import Matrix, Norm
from meshwright.executor.serving.served_model import ServedModel
from meshwright.serving.weight.weight_place import HEAD, FetchedBlocks, block_of, stage_blocks
from meshwright.specs.model.model import ModelSpec

TABLE = "embedding.weight"


class StageWeights:
    """What some blocks of a stage need."""

    def __init__(self, model: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
        self.model, self._tensors = model, tensors

    def __contains__(self, module: str) -> bool:
        return f"{module}.weight" in self._tensors

    def tensor(self, module: str) -> Tensor:
        """The weight of a module."""
        return self._tensors[f"{module}.weight"]

    def optional(self, module: str) -> Tensor | None:
        """The weight of a module that not all layers have."""
        return self._tensors.get(f"{module}.weight")

    def constant(self, name: str) -> Tensor:
        """What is no parameter, by its own name."""
        return self._tensors[name]

    def matrix(self, module: str) -> Matrix:
        """A module that is a product."""
        return Matrix(self.tensor(module), self._tensors.get(f"{module}.bias"))

    def norm(self, module: str) -> Norm:
        """A module that is a norm."""
        return Norm(self.tensor(module), self._tensors.get(f"{module}.bias"), self.model.norm_epsilon)

    def optional_norm(self, module: str) -> Norm | None:
        """A norm that not all layers have."""
        return self.norm(module) if module in self else None

    def copied(self, device: torch.device) -> StageWeights:
        """The same numbers in memory of their own."""
        return StageWeights(
            self.model, {name: tensor.to(device, copy=True) for name, tensor in self._tensors.items()}
        )

    @property
    def num_bytes(self) -> int:
        """Of all that is here; a tied head is the embedding."""
        return sum(tensor.nbytes for tensor in self._tensors.values())


def num_held(
    served: ServedModel,
    fetched: FetchedBlocks,
    num_experts: int | None = None,
    slots: Sequence[Sequence[int]] = (),
) -> int:
    """Numbers of a model's weights that are there at once: what stays, of what is fetched a window of the largest, and so
    many of the largest experts (None: all). ``slots``: of every layer its experts by slot, which may stand in several."""
    sizes: dict[str, int] = {}
    experts: dict[str, list[int]] = {}
    for name, shape in served.names.our_shapes().items():
        if num_experts is not None and is_of_experts(name):
            experts.setdefault(block_of(name), []).append(math.prod(shape[1:]))
        else:
            if slots and is_of_experts(name):
                shape = (len(slots[layer_of(name)]), *shape[1:])
            sizes[block_of(name)] = sizes.get(block_of(name), 0) + math.prod(shape)
    places = (num_experts or 0) * max(map(sum, experts.values()), default=0)
    comes = sorted(size for block, size in sizes.items() if block in fetched.blocks)
    stays = sum(sizes.values()) - sum(comes)
    return (
        places + stays + sum(comes[len(comes) - fetched.window :] if fetched.window < len(comes) else comes)
    )


def is_of_experts(name: str) -> bool:
    """Does a parameter stack the matrices of all experts of a layer?"""
    return name.removesuffix(".weight").endswith(STACKED_MODULES)


class StageReader:
    """A stage's blocks in the order of their use, and a tensor-parallel rank's part of each from the model's files.
    `leaves_experts`: what others read."""

    def __init__(
        self,
        served: ServedModel,
        layers: range,
        shard: TensorShard,
        dtype: torch.dtype,
        device: torch.device,
        has_embedding: bool = True,
        has_head: bool = True,
        leaves_experts: bool = False,
    ) -> None:
        self._served, self._shard, self._dtype, self._device = served, shard, dtype, device
        self._shapes = served.names.our_shapes()
        self.blocks = stage_blocks(layers, has_embedding, has_head)
        self._names: dict[str, list[str]] = {block: [] for block in self.blocks}
        for name in self._shapes:
            if not (leaves_experts and is_of_experts(name)):
                self._names.get(block_of(name), []).append(name)
        if has_head and served.model.has_tied_embeddings:
            self._names[HEAD].append(TABLE)

    def read(self, blocks: Iterable[str], *, copies: bool = False) -> StageWeights:
        """The weights of some blocks, what they share once. `copies`: in memory of their own, also where mapped files have
        them as they are: what is mapped comes when it is first touched, and nobody knows when it goes."""
        names = dict.fromkeys(name for block in blocks for name in self._names[block])
        return StageWeights(self._served.model, {name: self._tensor(name, copies) for name in names})

    def _tensor(self, name: str, copies: bool) -> Tensor:
        is_constant = name in self._served.names.constants
        # a choice is by scores in 32 bits, to which half of one would be noise
        dtype = torch.promote_types(self._dtype, torch.float32) if is_constant else self._dtype
        whole = self._served.source.value(name, self._shapes[name], dtype)
        part = self._shard.local(name, whole)
        found = part.to(self._device)
        is_view = found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        return found.clone() if copies and is_view else found
