"""Parameters of a Hugging Face folder as the executor's, and the executor's as such a folder.

How names and layouts correspond stands in `parameter_map`.

    model, source = open_hugging_face("folder")
    source.value("layers.3.qkv.weight", (96, 64), torch.float32)      # reads three tensors, nothing else
    save_hugging_face(model, parameters, "exported", tokenizer_from="folder")
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.executor.data.tokenization import TOKENIZER_FILE, FileTokenization
from meshwright.executor.models.weights.parameter_map import NameMap, parameter_shapes
from meshwright.executor.models.weights.weights_folder import SHARD_BYTES, WeightsFolder, write_folder
from meshwright.serving.stored.quantisation import method_of, without_quantisation
from meshwright.specs.config.export import check_weights_config, config_from_model
from meshwright.specs.config.source import load_model
from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.dimension import model_differences
from meshwright.specs.model.model import ModelSpec

BASE_PREFIXES = ("model.", "transformer.")  # a folder of the model without a head does not have them
# Constants that old versions stored beside the parameters: masks, and tables of rotary frequencies.
STORED_CONSTANTS = re.compile(r"(\.attn\.(masked_)?bias|rotary_emb\.inv_freq)$")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"),
)
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class TensorFolder(Protocol):
    """The tensors of a model's files by name, however they are stored."""

    @property
    def folder(self) -> Path:
        """Where they are."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One of them, whole."""
        ...


class HuggingFaceSource:
    """First values of parameters from a folder; only what is asked for is read. `names`: of a family that is not trained;
    `weights`: of a folder whose weights were quantised.

    Raises ExecutionError where the folder's model is not `model` (names and texts aside), or its tensors are not exactly
    those of that model; SpecError where its config.json has a field that is not known here.
    """

    def __init__(
        self, folder: str | os.PathLike[str], model: ModelSpec, names: NameMap | None = None,
        weights: TensorFolder | None = None,
    ) -> None:  # fmt: skip
        config = read_config(folder)
        if weights is not None:
            config = without_quantisation(config)
        elif method := method_of(config):
            raise SpecError(
                f"{os.fspath(folder)}: weights quantised by {method} are served, not trained",
                allowed="a folder in float32, bfloat16 or float16",
            )
        check_weights_config(config, str(config.get("model_type")), str(Path(folder) / "config.json"))
        _check_same(model.base, load_model(Path(folder)), folder)
        self.map = names or NameMap(model)
        self.weights: TensorFolder = WeightsFolder(folder) if weights is None else weights
        self._stored = self._names()

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Our parameter `name`, which has this shape."""
        parts = [self._part(part, dtype) for part in self.map.place(name).parts]
        found = self.map.to_ours(name, parts)
        if tuple(found.shape) != tuple(shape):
            raise ExecutionError(f"{name} is {tuple(found.shape)} in the folder", allowed=f"{tuple(shape)}")
        return found

    def expert_value(self, name: str, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Of our parameter `name`, which stacks all experts of a layer and has this shape, one expert's matrix, in memory of
        its own. Where every expert's tensors are apart in the files no others are read."""
        place = self.map.place(name)
        num_parts = len(place.parts) // place.num_stacked if place.num_stacked else 0
        if not num_parts:
            return self.value(name, shape, dtype)[number].clone()
        own = place.parts[number * num_parts : (number + 1) * num_parts]
        return torch.cat([self._part(part, dtype) for part in own]).view(shape[1:])

    def _part(self, name: str, dtype: torch.dtype) -> Tensor:
        stored, wanted = self._stored[name], self.map.shapes[name]
        found = self.weights.tensor(stored)
        if tuple(found.shape) != wanted:
            raise ExecutionError(
                f"{self.weights.folder}: {stored} is {tuple(found.shape)}",
                allowed=f"{wanted}, as config.json says",
            )
        return found.to(dtype)

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
        tokenizer_from: a folder whose tokenizer's files are copied, and whose config.json says the special tokens; where it
            does not, the end is what ends a document in training.
        dtype: of the file; None: that of the parameters.

    Raises:
        ExecutionError: parameters are missing, too many, or of another shape; the folder exists.
        SpecError: the family's configuration cannot say what this model has.
    """
    names = NameMap(model)
    _check_names(model, set(names.names), set(parameters))
    chosen = dtype or next(iter(parameters.values())).dtype
    config = {**config_from_model(model.base), "torch_dtype": str(chosen).removeprefix("torch.")}
    config |= _special_tokens(tokenizer_from)
    files: list[Path] = []
    if tokenizer_from is not None:
        files = [path for path in (Path(tokenizer_from) / name for name in TOKENIZER_FILES) if path.is_file()]
    theirs = _LastConverted(names, parameters)
    order = {part: names.shapes[part] for place in names.names.values() for part in place.parts}
    return write_folder(folder, config, order, theirs.value, chosen, shard_bytes, files)


def _special_tokens(tokenizer_from: str | os.PathLike[str] | None) -> dict[str, Any]:
    """TOKEN_FIELDS of a configuration. None where nothing says one: a family's own default (2 ends a text of Llama) is some
    letter of another tokenizer, at which generation would end.
    """
    if tokenizer_from is None:
        return dict.fromkeys(TOKEN_FIELDS)
    given = read_config(tokenizer_from)
    found = {name: given.get(name) for name in TOKEN_FIELDS}
    if found["eos_token_id"] is None and (Path(tokenizer_from) / TOKENIZER_FILE).is_file():
        with contextlib.suppress(SpecError):  # a tokenizer that names no end has none
            found["eos_token_id"] = FileTokenization(Path(tokenizer_from)).end_id
    return found


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
        found = json_of(path.read_text(encoding="utf-8"))
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
    differing = model_differences(model, stored).items()
    said = "; ".join(f"{name} {there!r} there, {here!r} here" for name, (here, there) in differing)
    raise ExecutionError(
        f"{os.fspath(folder)} holds another model than {model.name}: {said}",
        allowed="the folder of the very model that is trained",
        next="make the plan for this folder: meshwright plan FOLDER ...",
    )
