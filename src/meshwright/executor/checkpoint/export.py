"""The parameters of a checkpoint as whole tensors, for other programs: a Hugging Face folder, or one safetensors file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from meshwright.executor.checkpoint.checkpoint import load_pieces
from meshwright.executor.checkpoint.index import CheckpointIndex, StoredTensor, read_index
from meshwright.executor.checkpoint.storage import DTYPES, bytes_of, header_of
from meshwright.executor.checkpoint.verify import problems
from meshwright.executor.file.new_file import NewFile
from meshwright.executor.layout.piece import Piece
from meshwright.executor.models.weights.hugging_face import TOKENIZER_FILES, save_hugging_face
from meshwright.executor.models.weights.initialisation import parameter_source
from meshwright.executor.models.weights.merged_parameters import MergedParameters
from meshwright.executor.models.weights.parameter_map import NameMap
from meshwright.executor.state.group_pieces import STEP_COUNT
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec

SAFETENSORS = "safetensors"


@dataclass(frozen=True)
class StoredParameters(Mapping[str, Tensor]):
    """The parameters of a checkpoint by their names in the whole model; each is read when it is asked for."""

    checkpoint: Path
    index: CheckpointIndex

    def __getitem__(self, name: str) -> Tensor:
        stored = self.stored[name]
        value = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
        piece = Piece(name, stored.shape, (0,) * len(stored.shape), value)
        load_pieces(self.checkpoint, replace(self.index, tensors={name: stored}), [piece])
        return value

    @property
    def stored(self) -> dict[str, StoredTensor]:
        """What the index says of them; not the optimizer's state, whose names have its key in front."""
        return {n: t for n, t in self.index.tensors.items() if "/" not in n and n != STEP_COUNT}

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def export(
    checkpoint: Path, target: Path, form: str, dtype: str = "", tokenizer_from: Path | None = None
) -> int:
    """Write the parameters to `target`, a new folder; give how many there are.

    Args:
        form: "hugging_face" (config.json and weights, which transformers loads), or "safetensors" (our own names).
        dtype: of the numbers written, "float32" and so on; "": the checkpoint's.
        tokenizer_from: a folder whose tokenizer is copied to a Hugging Face folder.

    Raises:
        SpecError: the checkpoint says no model; there is no tokenizer; the target is there; the family cannot say the model.
        ExecutionError: a file is not what its checksum says, or its model has no map of names.
    """
    index = read_index(checkpoint)
    if wrong := problems(checkpoint):
        raise ExecutionError("; ".join(wrong), next="convert another checkpoint of the folder")
    chosen: torch.dtype | None = getattr(torch, dtype) if dtype else None
    parameters = StoredParameters(checkpoint, index)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SpecError(f"{target} is there already", allowed="a new or empty folder")
    if tokenizer_from is not None and not any((tokenizer_from / name).is_file() for name in TOKENIZER_FILES):
        raise SpecError(f"{tokenizer_from} has no tokenizer", allowed=f"a folder with {TOKENIZER_FILES[0]}")
    if form == SAFETENSORS:
        _write_plain(parameters, target, chosen)
    else:
        spec, whole = whole_parameters(checkpoint, index)
        save_hugging_face(spec, whole, target, tokenizer_from=tokenizer_from, dtype=chosen)
    return len(parameters)


def whole_parameters(checkpoint: Path, index: CheckpointIndex) -> tuple[ModelSpec, Mapping[str, Tensor]]:
    """The model of a checkpoint and all its parameters by our names: what was frozen from where it came, additions added.

    Raises SpecError where the checkpoint says no model.
    """
    told, parameters = index.info.training, StoredParameters(checkpoint, index)
    if told.get("model") is None:
        raise SpecError(f"{checkpoint} says no model", allowed="a checkpoint of a training")
    model = ModelSpec.from_dict(told["model"])
    if not model.is_adapted and not _lacks_constants(model, parameters):
        return model, parameters
    source = parameter_source(model, int(told["seed"]), told["source"]["weights"])  # what no step changes
    return model, MergedParameters(model, parameters, source)


def _lacks_constants(model: ModelSpec, parameters: StoredParameters) -> bool:
    """Are constants all that is missing?"""
    names = NameMap(model)
    return bool(names.constants) and set(names.names) - set(parameters) == set(names.constants)


def _write_plain(parameters: StoredParameters, target: Path, dtype: torch.dtype | None) -> None:
    """One file with all of them, one after the other through memory."""
    target.mkdir(parents=True, exist_ok=True)
    entries = [
        (name, dtype or DTYPES[tensor.dtype], tensor.shape) for name, tensor in parameters.stored.items()
    ]
    with NewFile(target / "model.safetensors") as file:
        file.write(header_of(entries))
        for name, chosen, _ in entries:
            file.write(bytes_of(parameters[name].to(chosen)))
