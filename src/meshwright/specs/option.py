"""Options: a field of a frozen dataclass that says how people give it; the command line and its help are made from it.

    @dataclass(frozen=True)
    class Recipe:
        learning_rate: float = option(1e-3, "The peak.", panel="Optimizer")

A field without an option is for Python alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
WORD = re.compile(r"(?:[^,(]|\([^)]*\))+")


@dataclass(frozen=True)
class GivenOption:
    """How a field is given in words.

    Args:
        help: one sentence; a default that says something is added to it in brackets.
        name: on the command line, such as "--final-lr" ("-p" may stand behind it, after a blank); "": the field's own name.
            Of a switch that is on by default, the name that turns it off.
        panel: the heading that it stands under in a help text; "": that of all options.
        parse: makes the value, in SI units, of the text (of the list of texts where `repeats`); None: the field's type does.
        repeats: may it be given several times?
        metavar: what stands for the value in a help text.
        least, above: the smallest value; what the value has to exceed.
    """

    help: str
    name: str = ""
    panel: str = ""
    parse: Callable[[Any], Any] | None = None
    repeats: bool = False
    metavar: str = ""
    least: float | None = None
    above: float | None = None


def option(default: Any, help: str, name: str = "", **more: Any) -> Any:
    """A field with an option; `default` is MISSING of `dataclasses` where the field has to be given. `more`: as of
    `GivenOption`."""
    return field(default=default, metadata={"option": GivenOption(help, name, **more)})


def options_of(kind: type) -> list[tuple[Field[Any], GivenOption]]:
    """The fields of a dataclass that have an option."""
    return [(each, each.metadata["option"]) for each in fields(kind) if "option" in each.metadata]


def flag_of(each: Field[Any], told: GivenOption) -> str:
    """The name on the command line: --learning-rate."""
    return told.name.split()[0] if told.name else "--" + each.name.replace("_", "-")


def is_required(each: Field[Any]) -> bool:
    """Has it to be given?"""
    return each.default is MISSING


def takes(kind: type) -> Callable[[Function], Function]:
    """Lets the signature of a function that takes ``**given`` show the fields of a dataclass, which these are."""

    def shown(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
            )
            for each in fields(kind)
        ]
        function.__dict__["__signature__"] = signature.replace(parameters=[*own, *named])
        return function

    return shown


def words_of(text: str) -> tuple[str, ...]:
    """Words with commas between them; those within parentheses are of one word's own options."""
    return tuple(word.strip() for word in WORD.findall(text) if word.strip())
