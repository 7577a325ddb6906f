"""A chat template as a tokenizer's folder has it: its text, where it stands, and the words that it may use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

TEMPLATE_FILE, SETTINGS_FILE = "chat_template.jinja", "tokenizer_config.json"


class TemplateSource(NamedTuple):
    """A template.

    Args:
        text: of Jinja.
        place: where it stands, for messages.
        words: bos_token and others by name.
    """

    text: str
    place: str
    words: Mapping[str, str]


def template_source(folder: Path, file: Path | None = None) -> TemplateSource:
    """Of a folder, as `found_template`. Raises SpecError where there is none."""
    found = found_template(folder, file)
    if found is None:
        raise SpecError(
            f"{folder} has no chat template",
            allowed=f"{TEMPLATE_FILE} in the tokenizer's folder, or chat_template in its {SETTINGS_FILE}",
            next="name one with --chat-template FILE",
        )
    return found


def found_template(folder: Path, file: Path | None = None) -> TemplateSource | None:
    """Of a tokenizer's folder: chat_template.jinja, else `chat_template` of its settings (of several the one called
    default); or of a `file`. None: it has none. Raises SpecError where a file cannot be read.
    """
    settings = _settings(folder / SETTINGS_FILE)
    words = {name: _content(said) for name, said in settings.items() if name.endswith("_token")}
    words = {name: said for name, said in words.items() if said}
    beside = folder / TEMPLATE_FILE if file is None else file
    if file is not None or beside.is_file():
        return TemplateSource(_read(beside), str(beside), words)
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        return None
    return TemplateSource(found, f"{folder / SETTINGS_FILE}, chat_template", words)


def _settings(path: Path) -> Mapping[str, Any]:
    """A tokenizer_config.json; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        found = json_of(_read(path))
    except ValueError as error:
        raise SpecError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    """A token of the settings: a string, or an object with the string as content."""
    said = token.get("content") if isinstance(token, dict) else token
    return said if isinstance(said, str) else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}", allowed="a file of text") from error
