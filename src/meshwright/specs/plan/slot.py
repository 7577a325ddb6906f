"""Slots: fields that name an implementation, with options: ``zero3``, ``NAME(option=2)``, ``./mine.py:thing``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.specs.error import PlanError

Finder = Callable[[str, str], Any]  # (slot, reference) -> what fills it
_CALL = re.compile(r"(?P<name>[^()]+?)\s*(\((?P<options>.*)\))?", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """A name with options, as a plan, a recipe, a cluster or a command line writes it."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, text: str) -> Reference:
        """Read ``NAME`` or ``NAME(option=value, ...)``; a bare word is a text. Raises PlanError."""
        match = _CALL.fullmatch(text.strip())
        if match is None:
            raise PlanError(f"{text!r} names nothing", allowed="NAME, or NAME(option=value, ...)")
        try:
            call = ast.parse(f"f({match['options'] or ''})", mode="eval").body
            assert isinstance(call, ast.Call)
            if call.args or any(each.arg is None for each in call.keywords):
                raise ValueError
            options = tuple((str(each.arg), _value(each.value)) for each in call.keywords)
        except (SyntaxError, ValueError):
            raise PlanError(
                f"the options of {text!r} cannot be read",
                allowed="NAME(option=value, ...), values as Python writes them",
            ) from None
        return cls(match["name"], options)

    @property
    def names_code(self) -> bool:
        """Does it name a file of the user's, which runs when it is looked up?"""
        return self.name.partition(":")[0].endswith(".py")

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options)})"


def reference_text(name: str, options: Mapping[str, Any]) -> str:
    """The text of a name with options."""
    return str(Reference(name, tuple(options.items())))


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
