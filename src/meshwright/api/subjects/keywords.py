"""Keywords of a verb that hands them on: one that is misspelt is told with those that are near, as any other name is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from meshwright.specs.error import UnknownNameError


def check_keywords(verb: str, given: Iterable[str], *taken: Callable[..., Any]) -> None:
    """Raise UnknownNameError for a keyword that none of these functions takes."""
    known = {
        name
        for function in taken
        for name, each in inspect.signature(function).parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }
    for name in given:
        if name not in known:
            raise UnknownNameError(f"argument of {verb}", name, known)
