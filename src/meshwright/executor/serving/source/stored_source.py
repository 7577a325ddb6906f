"""StoredSource: the parameters of a checkpoint of ours, as a model to serve has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from meshwright.executor.checkpoint.export import StoredParameters, whole_parameters
from meshwright.executor.checkpoint.folder import checkpoint_at
from meshwright.executor.checkpoint.index import read_index
from meshwright.executor.checkpoint.storage import DTYPES
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec


@dataclass(frozen=True)
class StoredSource:
    """Parameters by our names, of any kind of mapping; each is read when it is asked for."""

    values: Mapping[str, Tensor]

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `ParameterSource`."""
        found = self.values[name].to(dtype)
        if tuple(found.shape) != tuple(shape):
            raise ExecutionError(
                f"{name} is {tuple(found.shape)} in the checkpoint", allowed=f"{tuple(shape)}"
            )
        return found


def open_checkpoint(folder: Path) -> tuple[ModelSpec, StoredSource, str]:
    """The model of a checkpoint, or of the latest of a folder of them, its parameters, and the format of these.

    Additions of a training are in their matrices. Raises SpecError where there is no checkpoint, or it says no model.
    """
    checkpoint = checkpoint_at(folder)
    index = read_index(checkpoint)
    model, values = whole_parameters(checkpoint, index)
    first = next(iter(StoredParameters(checkpoint, index).stored.values()))
    return model.base, StoredSource(values), str(DTYPES[first.dtype]).removeprefix("torch.")
