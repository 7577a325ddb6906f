"""Pooling: how a folder says that a text becomes one vector: the files of sentence-transformers beside a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

MODULES, SETTINGS = "modules.json", "config.json"
SERVED = "modules.json with a Transformer, a Pooling by the last token, and perhaps a Normalize"
LAST = "lasttoken"


@dataclass(frozen=True)
class Pooling:
    """By the last token of a text, as decoders are pooled. `is_normalized`: are vectors of length 1?"""

    is_normalized: bool


def pooling_of(folder: Path) -> Pooling | None:
    """As the folder says; None: it says nothing, and its model generates text alone.

    Raises SpecError where vectors are made in a way that is not served.
    """
    if not (folder / MODULES).is_file():
        return None
    modules = _read(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise SpecError(f"{folder / MODULES} is no list of modules", allowed=SERVED)
    kinds = [str(each.get("type", "")).rpartition(".")[2] for each in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise SpecError(f"{folder / MODULES} has {', '.join(kinds)}", allowed=SERVED)
    settings = _read(folder / str(modules[1].get("path", "")) / SETTINGS)
    if (modes := _modes(settings)) != [LAST]:
        raise SpecError(f"{folder} is pooled by {', '.join(modes) or 'nothing'}", allowed=SERVED)
    return Pooling("Normalize" in kinds)


def _modes(settings: Any) -> list[str]:
    """As either generation of the files writes them: one name, or a switch for each."""
    if not isinstance(settings, dict):
        return []
    if isinstance(settings.get("pooling_mode"), str):
        return [str(settings["pooling_mode"])]
    prefix = "pooling_mode_"
    return [
        name.removeprefix(prefix)
        for name, is_on in settings.items()
        if name.startswith(prefix) and is_on is True
    ]


def _read(file: Path) -> Any:
    try:
        return json_of(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}", allowed=SERVED) from None
