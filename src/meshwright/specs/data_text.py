"""JSON and TOML that anybody may have written: whatever Python's readers stumble over becomes a ValueError."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from meshwright.specs.bound.bound import MOST_DOTS

TOO_DEEP = "it is nested deeper than anything that holds data"
_PIECE = re.compile(r"[=\n,{]")  # what ends a key


def json_of(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError where it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def toml_of(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError where it is none."""
    if any(piece.count(".") > MOST_DOTS for piece in _PIECE.split(text)):
        raise ValueError(TOO_DEEP)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
