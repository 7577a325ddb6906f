"""Slots: fields that name an implementation, with options: ``zero3``, ``NAME(option=2)``, ``./mine.py:thing``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from meshwright.specs.error import PlanError

Finder = Callable[[str, str], Any]  # (slot, reference) -> what fills it
_CALL = re.compile(r"(?P<name>[^()]+?)\s*(\((?P<options>.*)\))?", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """A name with options, as a plan, a recipe, a cluster or a command line writes it."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    finder: ClassVar[Finder | None] = None  # what knows names beyond the core's: the catalog, once imported

    @classmethod
    @cache  # a plan asks for what fills its slots at every question
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
        return self.file.endswith(".py")

    def absolute(self) -> Reference:
        """The same in any folder of this machine."""
        return (
            Reference(_file_of(self) + self.name[len(self.file) :], self.options) if self.names_code else self
        )

    @property
    def file(self) -> str:
        """The file that it names, if it names one."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options)})"


def resolve(slot: str, reference: str) -> Any:
    """What fills a slot under a name that the core does not know. Raises PlanError where nobody knows it."""
    if Reference.finder is None:
        raise PlanError(
            f"{slot} is {reference!r}, which the core does not know",
            next="import meshwright.catalog, which finds names of systems and files",
        )
    return Reference.finder(slot, reference)


def reference_text(name: str, options: Mapping[str, Any]) -> str:
    """The text of a name with options."""
    return str(Reference(name, tuple(options.items())))


BOOLEANS = {"true": True, "false": False}  # as a TOML or JSON file writes them


def _value(node: ast.expr) -> Any:
    return BOOLEANS.get(node.id, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


class Trust:
    """Which of the user's files may run: those that a command or a call names, not those that a file names, unless the user
    says so. A plan that somebody else wrote would otherwise run their code where it is only looked at."""

    def __init__(self) -> None:
        self._doubted: set[str] = set()
        self.is_given = False

    def doubt(self, reference: str) -> None:
        """A file named it."""
        named = Reference(
            reference.partition("(")[0].strip()
        )  # what else is wrong with it is said where it is used
        if named.names_code:
            self._doubted.add(_file_of(named))

    def allow(self, reference: str) -> None:
        """The user named it, on a command line or in a call: whatever file names it, too."""
        self._doubted.discard(_file_of(Reference.of(reference)))

    def check(self, name: str) -> None:
        """Raise PlanError where a file named this code, and nobody said that it may run."""
        if not self.is_given and _file_of(Reference(name)) in self._doubted:
            raise PlanError(
                f"a file names code of its own: {name}",
                allowed="names of the package, or code that you trust",
                next="read it, then say --trust (Plan.load(path, trust=True))",
            )


def _file_of(reference: Reference) -> str:
    return str(Path(reference.file).expanduser().resolve())


TRUST = Trust()
