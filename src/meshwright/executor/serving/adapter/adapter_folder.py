"""AdapterFolder: low-rank additions to a served model from a folder of PEFT (adapter_config.json, safetensors).

There every projection has factors of its own, A [r, inputs] and B [outputs, r]; ours are fused, so their A lie one behind the
other, and B has the outputs of each only where its own A is.

Shapes: r rank, of a fused matrix the sum of its parts'; I inputs, O outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.models.weights.weights_folder import WeightsFolder
from meshwright.executor.serving.gemma import names_of
from meshwright.executor.serving.matrix import Addition
from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.adaptation import LORA_COLUMNS, LORA_TARGETS, MLP_TARGETS
from meshwright.specs.model.model import ModelSpec

ADAPTER_CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
# Fields of a configuration that change what is computed, and what they have to be; others choose what was trained.
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    **dict.fromkeys(("use_dora", "lora_bias"), (False, None)),
    **dict.fromkeys(("modules_to_save", "alpha_pattern", "layer_replication"), (None, [], {})),
    **dict.fromkeys(("megatron_config", "trainable_token_indices", "corda_config"), (None, {}, [])),
}
Factors = tuple[
    str, tuple[int, ...]
]  # the name in the folder without the factor's ending, and the matrix's shape [O, I]


class AdapterFolder:
    """What an adapter adds, checked against the model; tensors are read when they are asked for.

    Raises:
        ExecutionError: the folder is none of PEFT's, it does more than add to matrices, or is of another model.
    """

    def __init__(self, folder: str | os.PathLike[str], model: ModelSpec) -> None:
        self.folder, self.model, self._map = Path(folder), model, names_of(model)
        config = self._config()
        self._alpha, self._is_root = float(config.get("lora_alpha") or 1.0), bool(config.get("use_rslora"))
        self._weights = WeightsFolder(self.folder)
        self._parts = {target: self._factors(target) for target in self._targets()}
        known = {
            f"{name}.{factor}.weight"
            for parts in self._parts.values()
            for name, _ in parts
            for factor in "AB"
        }
        rest = sorted(name for name in self._weights.names if name.replace(".lora_", ".") not in known)
        if rest:
            raise ExecutionError(
                f"{self.folder} has {rest[0]!r}, which adds to nothing that adapters may here",
                allowed=f"{PREFIX}MODULE.lora_A.weight and .lora_B.weight of attention and dense MLPs",
            )
        for parts in self._parts.values():
            for name, shape in parts:
                self._check(name, shape)

    def additions(
        self, layers: range, shard: TensorShard, dtype: torch.dtype, device: torch.device
    ) -> Iterator[tuple[int, str, Addition]]:
        """(layer, matrix such as "qkv", what is added to it here) of these layers, a tensor-parallel rank's part."""
        for (layer, target), parts in self._parts.items():
            if layer not in layers or not any(self._has(name) for name, _ in parts):
                continue
            name = f"layers.{layer}.{target}.weight"
            a_rI, b_Or = self._fused(name, parts)
            if target in LORA_COLUMNS:
                b_Or = shard.local(name, b_Or)
            else:
                a_rI = shard.local(name, a_rI)
            yield layer, target, Addition(a_rI.to(device, dtype), b_Or.to(device, dtype).contiguous())

    def _fused(self, name: str, parts: list[Factors]) -> tuple[Tensor, Tensor]:
        """A and B of one of our matrices, in float32; the scale is in B."""
        there = [self._has(part) for part, _ in parts]
        a = [self._tensor(part, "A") for (part, _), is_there in zip(parts, there, strict=True) if is_there]
        rank, first, columns = sum(len(each) for each in a), 0, []
        for (part, (num_outputs, _)), is_there in zip(parts, there, strict=True):
            b_Or = torch.zeros(num_outputs, rank)
            if is_there:
                own = self._tensor(part, "B")
                b_Or[:, first : first + own.shape[1]] = own * self._scale(own.shape[1])
                first += own.shape[1]
            columns.append(b_Or)
        if self._map.place(name).is_transposed:  # their matrix is stored so, its additions are not
            columns = [each.t() for each in columns]
        return torch.cat(a), self._map.to_ours(name, columns)

    def _scale(self, rank: int) -> float:
        return self._alpha / (rank**0.5 if self._is_root else rank)

    def _targets(self) -> Iterator[tuple[int, str]]:
        """(layer, matrix) of all that may be added to: experts may not, nor what latent attention narrows and widens by."""
        for layer, block in enumerate(self.model.layers):
            without = (*(MLP_TARGETS if block.experts else ()), *(("qkv",) if block.attention.latent else ()))
            yield from ((layer, target) for target in LORA_TARGETS if target not in without)

    def _factors(self, place: tuple[int, str]) -> list[Factors]:
        """Of the parts of one of our matrices."""
        layer, target = place
        whole = self._map.place(f"layers.{layer}.{target}.weight")
        found: list[Factors] = []
        for part in whole.parts:
            shape = self._map.shapes[part]
            shape = shape[::-1] if whole.is_transposed else shape
            found.append((PREFIX + part.removesuffix(".weight"), shape))
        return found

    def _has(self, part: str) -> bool:
        return f"{part}.lora_A.weight" in self._weights.names

    def _tensor(self, part: str, factor: str) -> Tensor:
        return self._weights.tensor(f"{part}.lora_{factor}.weight").to(torch.float32)

    def _check(self, part: str, shape: tuple[int, ...]) -> None:
        """Both factors are there, or none, and fit."""
        names = [f"{part}.lora_{factor}.weight" for factor in "AB"]
        there = [name for name in names if name in self._weights.names]
        if not there:
            return
        found = [self._weights.shape(name) for name in there]
        rank = found[0][0]
        if found != [(rank, shape[1]), (shape[0], rank)]:
            raise ExecutionError(
                f"{self.folder}: {' and '.join(there)} are {' and '.join(map(str, found))}",
                allowed=f"(r, {shape[1]}) and ({shape[0]}, r), to be added to {self.model.name}",
            )

    def _config(self) -> dict[str, Any]:
        path = self.folder / ADAPTER_CONFIG
        try:
            found = json_of(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ExecutionError(
                f"{self.folder} is no adapter: {ADAPTER_CONFIG} cannot be read ({error})",
                allowed="a folder of PEFT",
            ) from None
        for name, allowed in PLAIN.items():
            if isinstance(found, dict) and found.get(name) not in allowed:
                raise ExecutionError(
                    f"{path}: {name!r} is {found.get(name)!r}",
                    allowed=f"{name} = {allowed[0]!r}: plain low-rank additions",
                )
        if not isinstance(found, dict):
            raise ExecutionError(f"{path} holds a {type(found).__name__}", allowed="a JSON object")
        return found
