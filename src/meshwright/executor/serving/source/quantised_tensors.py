"""QuantisedTensors: a folder of quantised weights, whose tensors are numbers again when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.models.weights.parameter_map import NameMap
from meshwright.serving.stored.quantisation import layout_of, quantisation_of
from meshwright.serving.stored.quantised_folder import QuantisedFolder
from meshwright.specs.config.source import CONFIG_FILE


class QuantisedTensors:
    """A `TensorFolder`. Its makers give every product a bias: one that `names` do not have, and is zero, is left out."""

    def __init__(self, stored: QuantisedFolder, names: NameMap) -> None:
        self._stored = stored
        self.folder = stored.folder
        more = {name for name in stored.names - set(names.shapes) if name.endswith(".bias")}
        self.names = stored.names - {name for name in more if not stored.numbers(name).any()}

    def tensor(self, name: str) -> Tensor:
        """In float32."""
        return torch.from_numpy(self._stored.numbers(name))


def quantised_tensors(folder: Path, config: Mapping[str, Any], names: NameMap) -> QuantisedTensors | None:
    """The tensors of a folder of a model with these parameters; None: they were not quantised.

    Raises:
        SpecError: they were, in a way that is not read.
    """
    if not quantisation_of(config):
        return None
    layout = layout_of(config, str(folder / CONFIG_FILE))
    return QuantisedTensors(QuantisedFolder(folder, layout), names)
