"""A parameter of a command that is a dataclass: each of its fields with an option is an option of the command."""

from __future__ import annotations

import inspect
import os
import types
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from meshwright.specs.error import SpecError
from meshwright.specs.option import GivenOption, flag_of, is_required, options_of

UNSAID = (None, "", 0, False, True, ())  # defaults that a help text does not tell


def group_of(annotation: Any) -> type | None:
    """The dataclass that a parameter wants, None for an argument or option of its own; ``X | None`` wants X."""
    found = [
        kind for kind in _kinds(annotation) if hasattr(kind, "__dataclass_fields__") and options_of(kind)
    ]
    return found[0] if found else None


def options_in(kind: type, prefix: str) -> list[inspect.Parameter]:
    """A parameter for every option of the dataclass. Its default stands there alone: the parser says None, or False."""
    hints = get_type_hints(kind)
    return [
        inspect.Parameter(
            prefix + each.name, inspect.Parameter.KEYWORD_ONLY, default=False if hints[each.name] is bool else None,
            annotation=Annotated[_type(told, hints[each.name]), _typer_option(each, told, hints[each.name])],
        )
        for each, told in options_of(kind)
    ]  # fmt: skip


def group_from(kind: type, default: Any, given: dict[str, Any], prefix: str) -> Any:
    """The dataclass of what was given, which is taken out of `given`; where nothing was, `default` if it has one.

    Raises SpecError where what the others need was not given, and what the dataclass and its parsers raise.
    """
    values = {each.name: given.pop(prefix + each.name) for each, _ in options_of(kind)}
    said = {name: value for name, value in values.items() if value is not None and value != []}
    flags = {each.name: flag_of(each, told) for each, told in options_of(kind)}
    for each, told in options_of(kind):
        if isinstance(each.default, bool) and said.pop(each.name):
            said[each.name] = not each.default
        elif each.name in said and told.parse is not None:
            said[each.name] = told.parse(said[each.name])
    missing = {
        flags[each.name]: told
        for each, told in options_of(kind)
        if is_required(each) and each.name not in said
    }
    if missing and said:
        needed = ", ".join(f"{flag} {told.metavar}".strip() for flag, told in missing.items())
        present = ", ".join(flags[name] for name in said)
        raise SpecError(f"{present} without {', '.join(missing)}", allowed=f"{needed} beside it")
    return default if not said and default is not inspect.Parameter.empty else kind(**said)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (types.UnionType, Union) else (annotation,)


def _type(told: GivenOption, hint: Any) -> Any:
    """What the parser reads by itself; all else is text, which the option's own parser reads."""
    if told.repeats:
        return list[str] | None
    if hint is bool or told.parse is not None:
        return bool if hint is bool else str | None
    kinds = [Path if get_origin(kind) is os.PathLike else kind for kind in _kinds(hint)]
    return next((kind for kind in (Path, bool, int, float) if kind in kinds), str) | None


def _typer_option(each: Field[Any], told: GivenOption, hint: Any) -> Any:
    flag, *short = told.name.split() or [flag_of(each, told)]
    if bool in _kinds(hint) and hint is not bool:
        flag = f"{flag}/--no-{flag[2:]}"
    return typer.Option(
        flag, *short, help=_help(each, told), min=told.least, metavar=told.metavar or None,
        rich_help_panel=told.panel or None,
    )  # fmt: skip


def _help(each: Field[Any], told: GivenOption) -> str:
    if is_required(each) or each.default in UNSAID:
        return told.help
    values = each.default if isinstance(each.default, tuple) else (each.default,)
    return f"{told.help.removesuffix('.')} ({','.join(map(str, values))})."
