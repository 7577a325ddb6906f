"""Scalars of a training for TensorBoard, through torch's own writer, where the package `tensorboard` is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.specs.error import ExecutionError


class TensorBoard:
    """Writes event files into a folder; a training that goes on writes another one beside the first."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        """`first_step`: points of this step and later ones that an interrupted training wrote are hidden.

        Raises ExecutionError where the package is missing.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise ExecutionError(
                "TensorBoard's files are asked for, and the package tensorboard is not installed",
                next="pip install tensorboard",
            )
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """The numbers among the values, by name."""
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """All that was written is in the files."""
        self._writer.close()
