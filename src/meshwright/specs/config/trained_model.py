"""The model of a folder of checkpoints that `train` wrote: its shape stands beside its weights."""

from __future__ import annotations

from pathlib import Path

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec

INDEX_FILE, LATEST = "checkpoint.json", "latest"


def trained_model(folder: Path) -> ModelSpec | None:
    """Of one checkpoint, or of the latest in a folder; None: there is none. Raises SpecError where it says no model."""
    latest = folder / LATEST
    index = folder / INDEX_FILE
    if latest.is_file():
        index = folder / latest.read_text(encoding="utf-8").strip() / INDEX_FILE
    if not index.is_file():
        return None
    try:
        fields = json_of(index.read_text(encoding="utf-8"))["info"]["training"]["model"]
    except (OSError, ValueError, KeyError, TypeError):
        raise SpecError(f"{index} says no model", allowed="a checkpoint that train wrote") from None
    return ModelSpec.from_dict(fields, str(index))
