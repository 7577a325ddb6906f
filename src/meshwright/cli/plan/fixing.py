"""What --fix, --forbid and their kin say: words, and NAME=VALUE pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


def words_of(given: Sequence[str]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def fixed_of(given: Sequence[str]) -> Mapping[str, Any]:
    """NAME=VALUE pairs, with numbers and yes or no read as such."""
    from meshwright.specs.error import SpecError

    found: dict[str, Any] = {}
    for pair in words_of(given):
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise SpecError(f"--fix {pair!r}", allowed="NAME=VALUE, such as tp=8,pp=4")
        if found.get(name, value) != value and str(found[name]) != value:
            raise SpecError(
                f"--fix says {name}={found[name]} and {name}={value}", allowed="one value for each name"
            )
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    if name == "overlap":
        return tuple(text.split("+"))
    if text.isdigit():
        return int(text)
    return True if text in TRUE else False if text in FALSE else text
