"""Texts as the files of others have them: a word of a shell, a string of YAML or JSON, a comment of one line.

Whatever a user or a stranger's file chose goes through one of these on its way into a script.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from meshwright.specs.printable import printable

LAST_OF_FOUR_DIGITS = 0xFFFF  # \uXXXX says no other


def shell_word(text: str) -> str:
    """One word, which a shell takes as it is."""
    return shlex.quote(text)


def quoted(text: str) -> str:
    """One string of JSON, which is one of YAML and TOML, too: these know no pairs of surrogates."""
    return "".join(_escaped(each) for each in json.dumps(text, ensure_ascii=False))


def toml_value(value: str | float | bool | Sequence[Any]) -> str:
    """Text, a number, true or false, or a list of these in TOML."""
    if isinstance(value, str):
        return quoted(value)
    return json.dumps(value) if isinstance(value, int | float) else f"[{', '.join(map(toml_value, value))}]"


def _escaped(character: str) -> str:
    is_plain = character.isprintable() or ord(character) > LAST_OF_FOUR_DIGITS
    return character if is_plain else f"\\u{ord(character):04x}"


def comment(text: str) -> str:
    """One line behind #, which it does not leave."""
    return f"# {printable(text)}"
