"""Names and layouts of a decoder's parameters, ours and those of Hugging Face, and the way from one to the other.

Ours fuse queries, keys and values (`qkv`) and gate and up (`gate_up`), and turn neighbouring numbers (2i, 2i + 1) of a
head; theirs turn (i, i + D/2), so the rows of queries and keys change places within each head. GPT-2 stores matrices as
(inputs, outputs). The matrices of all experts are one tensor of ours [experts, outputs, inputs], and an expert's theirs.
Which module is which stands in `specs.parameter_name`.

Shapes: D numbers of a head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from meshwright.executor.capability import check_model
from meshwright.executor.models.weights import published_pair
from meshwright.executor.models.weights.expert_name import published_names, published_shapes
from meshwright.executor.models.weights.published_pair import is_published_apart
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter_name import CONSTANTS, MODULES

GPT2_TRANSPOSED = ("qkv", "attention_output", "gate_up", "down")
STACKED_MODULES = ("expert_gate_up", "expert_down")
# Which of the parts of our modules have heads that turn.
TURNED_PARTS = {"qkv": 2, "query_norm": 1, "key_norm": 1}


@dataclass(frozen=True)
class Place:
    """Where a parameter of ours is in theirs: the names of its parts, in order; the first `num_turned` have heads whose
    rows change places; `is_transposed`: stored as (inputs, outputs); `num_stacked`: ours has the rows of so many experts
    one behind the other (0: of no experts). `published_leaf`: our module, where theirs is laid out as `published_pair` says.
    """

    parts: tuple[str, ...]
    num_turned: int = 0
    is_transposed: bool = False
    num_stacked: int = 0
    published_leaf: str = ""

    def stacked_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Ours, from that of all rows one behind the other."""
        return (self.num_stacked, shape[0] // self.num_stacked, *shape[1:]) if self.num_stacked else shape


class NameMap:
    """Names and layouts of one model's parameters on both sides. Raises ExecutionError for a family without a map."""

    def __init__(self, model: ModelSpec) -> None:
        if model.architecture not in MODULES:
            raise ExecutionError(
                f"{model.architecture} models have no map of names", allowed=", ".join(MODULES)
            )
        if model.num_encoder_layers:
            raise ExecutionError(
                f"{model.name} is an encoder-decoder, for whose blocks transformers has no class",
                allowed="a decoder alone",
                next="keep it in checkpoints of ours",
            )
        check_model(model)
        model = model.base
        self.model, self._modules = model, MODULES[model.architecture]
        self.shapes = published_shapes(model)
        self.constants = dict(_constants(model))
        self.shapes |= {place.parts[0]: shape for place, shape in self.constants.values()}

    def place(self, name: str) -> Place:
        """Where our parameter or constant `name` is in theirs."""
        if name in self.constants:
            return self.constants[name][0]
        number = re.search(r"^layers\.(\d+)\.", name)
        block = number.group(1) if number else ""
        module, _, attribute = re.sub(r"^layers\.\d+\.", "layers.{}.", name).rpartition(".")
        parts = self._parts(module, block, attribute)
        if not parts or any(part not in self.shapes for part in parts):
            raise ExecutionError(
                f"{self.model.name} has no parameter {name!r}",
                allowed=", ".join(self._modules).replace("{}", "0"),
            )
        leaf, is_gpt2 = module.rpartition(".")[2], self.model.is_gpt2
        is_transposed = is_gpt2 and attribute == "weight" and leaf in GPT2_TRANSPOSED
        if is_published_apart(self.model, leaf):
            return Place(parts, published_leaf=leaf)
        num_stacked = self.model.num_experts if leaf in STACKED_MODULES else 0
        return Place(parts, 0 if is_gpt2 else TURNED_PARTS.get(leaf, 0), is_transposed, num_stacked)

    def _parts(self, module: str, block: str | int, attribute: str) -> tuple[str, ...]:
        names = [f"{part.format(block)}.{attribute}" for part in self._modules.get(module, ())]
        return tuple(part for name in names for part in published_names(self.model, name))

    @cached_property
    def names(self) -> dict[str, Place]:
        """All our parameters, in the order of a forward, and constants before them."""
        found = {name: place for name, (place, _) in self.constants.items()}
        for module in self._modules:
            blocks = range(self.model.num_layers) if "{}" in module else range(1)
            for block in blocks:
                for attribute in ("weight", "bias"):
                    if any(part in self.shapes for part in self._parts(module, block, attribute)[:1]):
                        name = f"{module.format(block)}.{attribute}"
                        found[name] = self.place(name)
        return found

    def our_shapes(self) -> dict[str, tuple[int, ...]]:
        """Our parameters and constants by name, with their shapes; a tied head is the embedding and has no entry."""
        found: dict[str, tuple[int, ...]] = {}
        for name, place in self.names.items():
            first, *rest = (self.shapes[part] for part in place.parts)
            if place.published_leaf and len(first) == 3:
                found[name] = (first[0], first[2], first[1])
                continue
            shape = place.stacked_shape((first[0] + sum(other[0] for other in rest), *first[1:]))
            found[name] = shape[::-1] if place.is_transposed else shape
        return found

    def to_ours(self, name: str, parts: list[Tensor]) -> Tensor:
        """Our parameter `name` from its parts, those of `place(name)`."""
        place = self.place(name)
        if place.published_leaf:
            return published_pair.to_ours(place.published_leaf, parts[0])
        turned = [_paired(x, self.model.head_dim) for x in parts[: place.num_turned]]
        whole = torch.cat(turned + parts[place.num_turned :]) if len(parts) > 1 else (turned or parts)[0]
        whole = whole.view(place.stacked_shape(tuple(whole.shape)))
        return whole.t().contiguous() if place.is_transposed else whole

    def to_theirs(self, name: str, value: Tensor) -> dict[str, Tensor]:
        """Their tensors, by name, from our parameter `name`."""
        place = self.place(name)
        if place.published_leaf:
            return {place.parts[0]: published_pair.to_theirs(place.published_leaf, value)}
        whole = value.t() if place.is_transposed else value
        whole = whole.flatten(0, 1) if place.num_stacked else whole
        needed = sum(self.shapes[part][0] for part in place.parts)
        if whole.shape[0] != needed:
            raise ExecutionError(
                f"{name} has {whole.shape[0]} rows", allowed=f"{needed}, as {self.model.name} says"
            )
        parts = torch.split(whole, [self.shapes[part][0] for part in place.parts])
        return {
            part: _halved(x, self.model.head_dim) if number < place.num_turned else x
            for number, (part, x) in enumerate(zip(place.parts, parts, strict=True))
        }


def _constants(model: ModelSpec) -> Iterator[tuple[str, tuple[Place, tuple[int, ...]]]]:
    """Ours by name: where each is in theirs, and its shape."""
    for number, block in enumerate(model.layers):
        if block.experts and block.experts.routing_in(model.architecture).has_correction:
            for ours, theirs in CONSTANTS.items():
                yield ours.format(number), (Place((theirs.format(number),)), (block.experts.num_experts,))


def _paired(rows: Tensor, head_dim: int) -> Tensor:
    """Rows (i, i + D/2) of each head become rows (2i, 2i + 1)."""
    return rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _halved(rows: Tensor, head_dim: int) -> Tensor:
    """The other way round."""
    return rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """As `NameMap.our_shapes`."""
    return NameMap(model).our_shapes()
