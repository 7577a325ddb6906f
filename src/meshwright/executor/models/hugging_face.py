"""Parameters of a Hugging Face folder as the executor's, and the executor's as such a folder.

Ours fuse queries, keys and values (`qkv`) and gate and up (`gate_up`), and turn neighbouring numbers (2i, 2i + 1) of a
head; theirs turn (i, i + D/2), so the rows of queries and keys change places within each head. GPT-2 stores matrices as
(inputs, outputs).

Shapes: D numbers of a head.

    model, source = open_hugging_face("folder")
    source.value("layers.3.qkv.weight", (96, 64), torch.float32)      # reads three tensors, nothing else
    save_hugging_face(model, parameters, "exported", tokenizer_from="folder")
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.models.weights_folder import SHARD_BYTES, WeightsFolder, write_folder
from meshwright.specs.error import ExecutionError
from meshwright.specs.model import ModelSpec
from meshwright.specs.model_export import check_weights_config, config_from_model
from meshwright.specs.model_source import load_model
from meshwright.specs.parameter_name import MODULES

GPT2_TRANSPOSED = ("qkv", "attention_output", "gate_up", "down")
# Which of the parts of our modules have heads that turn.
TURNED_PARTS = {"qkv": 2, "query_norm": 1, "key_norm": 1}
BASE_PREFIXES = ("model.", "transformer.")  # a folder of the model without a head does not have them
# Constants that old versions stored beside the parameters: masks, and tables of rotary frequencies.
STORED_CONSTANTS = re.compile(r"(\.attn\.(masked_)?bias|rotary_emb\.inv_freq)$")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"),
)
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class Place:
    """Where a parameter of ours is in theirs: the names of its parts, in order; the first `num_turned` have heads whose
    rows change places; `is_transposed`: stored as (inputs, outputs).
    """

    parts: tuple[str, ...]
    num_turned: int = 0
    is_transposed: bool = False


class NameMap:
    """Names and layouts of one model's parameters on both sides. Raises ExecutionError for a family without a map."""

    def __init__(self, model: ModelSpec) -> None:
        if model.architecture not in MODULES:
            raise ExecutionError(
                f"{model.architecture} models have no map of names", allowed=", ".join(MODULES)
            )
        model.check_executable()
        model = model.base
        self.model, self._modules = model, MODULES[model.architecture]
        self.shapes = {parameter.name: parameter.shape for parameter in model.parameters()}

    def place(self, name: str) -> Place:
        """Where our parameter `name` is in theirs."""
        number = re.search(r"^layers\.(\d+)\.", name)
        block = number.group(1) if number else ""
        module, _, attribute = re.sub(r"^layers\.\d+\.", "layers.{}.", name).rpartition(".")
        parts = tuple(f"{part.format(block)}.{attribute}" for part in self._modules.get(module, ()))
        if not parts or any(part not in self.shapes for part in parts):
            raise ExecutionError(
                f"{self.model.name} has no parameter {name!r}",
                allowed=", ".join(self._modules).format(*[0] * 8),
            )
        leaf, is_gpt2 = module.rpartition(".")[2], self.model.is_gpt2
        is_transposed = is_gpt2 and attribute == "weight" and leaf in GPT2_TRANSPOSED
        return Place(parts, 0 if is_gpt2 else TURNED_PARTS.get(leaf, 0), is_transposed)

    @cached_property
    def names(self) -> dict[str, Place]:
        """All our parameters, in the order of a forward."""
        found: dict[str, Place] = {}
        for module in self._modules:
            blocks = range(self.model.num_layers) if "{}" in module else range(1)
            for block in blocks:
                for attribute in ("weight", "bias"):
                    first = f"{self._modules[module][0].format(block)}.{attribute}"
                    if first in self.shapes:
                        name = f"{module.format(block)}.{attribute}"
                        found[name] = self.place(name)
        return found

    def to_ours(self, name: str, parts: list[Tensor]) -> Tensor:
        """Our parameter `name` from its parts, those of `place(name)`."""
        place = self.place(name)
        turned = [_paired(x, self.model.head_dim) for x in parts[: place.num_turned]]
        whole = torch.cat(turned + parts[place.num_turned :]) if len(parts) > 1 else (turned or parts)[0]
        return whole.t().contiguous() if place.is_transposed else whole

    def to_theirs(self, name: str, value: Tensor) -> dict[str, Tensor]:
        """Their tensors, by name, from our parameter `name`."""
        place = self.place(name)
        whole = value.t() if place.is_transposed else value
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


def _paired(rows: Tensor, head_dim: int) -> Tensor:
    """Rows (i, i + D/2) of each head become rows (2i, 2i + 1)."""
    return rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _halved(rows: Tensor, head_dim: int) -> Tensor:
    """The other way round."""
    return rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class HuggingFaceSource:
    """First values of parameters from a folder; only what is asked for is read.

    Raises ExecutionError where the folder's model is not `model` (names and texts aside), or its tensors are not exactly
    those of that model; SpecError where its config.json has a field that is not known here.
    """

    def __init__(self, folder: str | os.PathLike[str], model: ModelSpec) -> None:
        config = read_config(folder)
        check_weights_config(config, str(config.get("model_type")), str(Path(folder) / "config.json"))
        _check_same(model.base, load_model(Path(folder)), folder)
        self.map, self.weights = NameMap(model), WeightsFolder(folder)
        self._stored = self._names()

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Our parameter `name`, which has this shape."""
        parts = [self._part(part, dtype) for part in self.map.place(name).parts]
        found = self.map.to_ours(name, parts)
        if tuple(found.shape) != tuple(shape):
            raise ExecutionError(f"{name} is {tuple(found.shape)} in the folder", allowed=f"{tuple(shape)}")
        return found

    def _part(self, name: str, dtype: torch.dtype) -> Tensor:
        stored, wanted = self._stored[name], self.map.shapes[name]
        if self.weights.shape(stored) != wanted:
            raise ExecutionError(
                f"{self.weights.folder}: {stored} is {self.weights.shape(stored)}",
                allowed=f"{wanted}, as config.json says",
            )
        return self.weights.tensor(stored).to(dtype)

    def _names(self) -> dict[str, str]:
        """The name in the folder of each of their parameters; refuses missing and unknown ones."""
        there, found = set(self.weights.names), {}
        for name in self.map.shapes:
            short = next((name.removeprefix(p) for p in BASE_PREFIXES if name.startswith(p)), name)
            stored = name if name in there else short
            if stored not in there:
                raise ExecutionError(
                    f"{self.weights.folder} has no tensor {name!r}", next="copy the whole folder of the model"
                )
            found[name] = stored
        rest = sorted(x for x in there - set(found.values()) if not STORED_CONSTANTS.search(x))
        if self.map.model.has_tied_embeddings:
            rest = [x for x in rest if x != "lm_head.weight"]  # the table once more
        if rest:
            raise ExecutionError(
                f"{self.weights.folder} has {rest[0]!r}{f' and {len(rest) - 1} more tensors' if rest[1:] else ''}, "
                f"which {self.map.model.architecture} models do not have",
                allowed="exactly the tensors of the model in config.json",
            )
        return found


def open_hugging_face(folder: str | os.PathLike[str]) -> tuple[ModelSpec, HuggingFaceSource]:
    """The model of a folder, and a source of its parameters. Raises as `HuggingFaceSource`."""
    model = load_model(Path(folder))
    return model, HuggingFaceSource(folder, model)


def load_hugging_face(
    folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32
) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The model of a folder and all its parameters by our names. Raises as `HuggingFaceSource`."""
    model, source = open_hugging_face(folder)
    return model, {name: source.value(name, shape, dtype) for name, shape in parameter_shapes(model).items()}


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Our parameters by name, with their shapes; a tied head is the embedding and has no entry."""
    found, shapes = {}, NameMap(model)
    for name, place in shapes.names.items():
        first, *rest = (shapes.shapes[part] for part in place.parts)
        shape = (first[0] + sum(other[0] for other in rest), *first[1:])
        found[name] = shape[::-1] if place.is_transposed else shape
    return found


def save_hugging_face(
    model: ModelSpec,
    parameters: Mapping[str, Tensor],
    folder: str | os.PathLike[str],
    *,
    tokenizer_from: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a folder that transformers loads: config.json, model.safetensors (or shards and their index).

    Args:
        parameters: all parameters by our names, of any kind of mapping: each is asked for when its shard is written.
        tokenizer_from: a folder whose tokenizer's files are copied, and whose config.json says the special tokens.
        dtype: of the file; None: that of the parameters.

    Raises:
        ExecutionError: parameters are missing, too many, or of another shape; the folder exists.
        SpecError: the family's configuration cannot say what this model has.
    """
    names = NameMap(model)
    _check_names(model, set(names.names), set(parameters))
    chosen = dtype or next(iter(parameters.values())).dtype
    config = {**config_from_model(model.base), "torch_dtype": str(chosen).removeprefix("torch.")}
    files: list[Path] = []
    if tokenizer_from is not None:
        given = read_config(tokenizer_from)
        config |= {field: given[field] for field in TOKEN_FIELDS if given.get(field) is not None}
        files = [path for path in (Path(tokenizer_from) / name for name in TOKENIZER_FILES) if path.is_file()]
    theirs = _LastConverted(names, parameters)
    order = {part: names.shapes[part] for place in names.names.values() for part in place.parts}
    return write_folder(folder, config, order, theirs.value, chosen, shard_bytes, files)


class _LastConverted:
    """Their tensors one by one; the parts of the last one of ours are kept, because they are asked for in a row."""

    def __init__(self, names: NameMap, parameters: Mapping[str, Tensor]) -> None:
        self._names, self._parameters = names, parameters
        self._ours = {part: name for name, place in names.names.items() for part in place.parts}
        self._last: tuple[str, dict[str, Tensor]] = ("", {})

    def value(self, part: str) -> Tensor:
        """Their tensor of this name."""
        name = self._ours[part]
        if self._last[0] != name:
            self._last = (name, self._names.to_theirs(name, self._parameters[name]))
        return self._last[1][part]


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a folder's config.json; none without such a file.

    Raises:
        ExecutionError: it is not a JSON object.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ExecutionError(f"{path} cannot be read: {error}", allowed="a JSON object") from None
    if not isinstance(found, dict):
        raise ExecutionError(f"{path} holds a {type(found).__name__}", allowed="a JSON object")
    return found


def _check_names(model: ModelSpec, needed: set[str], given: set[str]) -> None:
    for what, names in (("lack", needed - given), ("have", given - needed)):
        if names:
            raise ExecutionError(
                f"the parameters {what} {sorted(names)[0]!r} ({len(names)} in all)",
                allowed=f"the {len(needed)} parameters of {model.name}",
            )


def _check_same(model: ModelSpec, stored: ModelSpec, folder: str | os.PathLike[str]) -> None:
    if model.digest == stored.digest:
        return
    differing = _differences(model, stored)
    said = "; ".join(f"{name} {there!r} there, {here!r} here" for name, here, there in differing)
    raise ExecutionError(
        f"{os.fspath(folder)} holds another model than {model.name}: {said}",
        allowed="the folder of the very model that is trained",
        next="make the plan for this folder: meshwright plan FOLDER ...",
    )


def _differences(model: ModelSpec, stored: ModelSpec) -> Iterator[tuple[str, Any, Any]]:
    for field in fields(ModelSpec):
        here, there = getattr(model, field.name), getattr(stored, field.name)
        if field.name not in ("name", "source") and here != there:
            yield field.name, here, there
