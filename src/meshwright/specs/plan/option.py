"""Options: fields of a frozen dataclass with units and bounds, against which files and command lines are checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from meshwright.specs.error import PlanError

TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "",
    unit: str = "",
    least: float | None = None,
    above: float | None = None,
    among: tuple[Any, ...] = (),
) -> Any:
    """A field of an options dataclass.

    Args:
        default: what it is where nobody says; none: it has to be given.
        help: one line for people. unit: of the number, in SI.
        least, above: the smallest number allowed; what a number has to exceed.
        among: the values allowed.
    """
    words = {"help": help, "unit": unit, "least": least, "above": above, "among": among}
    return dataclasses.field(default=default, metadata={"option": words})


def with_options(cls: type, given: Mapping[str, Any], what: str) -> Any:
    """An instance of a dataclass from options by name; a whole number serves where a number is asked for.

    Raises PlanError where it has no such option, or a value has another type or is out of bounds.
    """
    known = {f.name: f for f in dataclasses.fields(cls) if f.init and f.compare}
    types, values = get_type_hints(cls), dict(given)
    for name, value in given.items():
        wanted = types.get(name)
        if wanted is float and type(value) is int:
            values[name] = float(value)
        elif name not in known or (wanted in TYPES.values() and type(value) is not wanted):
            raise PlanError(
                f"{what} is given {name} = {value!r}", allowed=allowed_options(cls) or "no options"
            )
        _check_bounds(known[name], values[name], what)
    missing = [
        name
        for name, f in known.items()
        if name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise PlanError(f"{what} is not given {', '.join(missing)}", allowed=allowed_options(cls))
    return cls(**values)


def allowed_options(cls: type) -> str:
    """Its options with their types, for messages: "computes_ahead (int)"."""
    types = get_type_hints(cls)
    names = (f.name for f in dataclasses.fields(cls) if f.init and f.compare)
    return ", ".join(f"{name} ({getattr(types[name], '__name__', str(types[name]))})" for name in names)


def described_options(cls: type) -> tuple[dict[str, Any], ...]:
    """What `list` shows of every option: name, type, default, help, unit, bounds."""
    types = get_type_hints(cls)
    return tuple(
        {
            "name": f.name,
            "type": getattr(types[f.name], "__name__", str(types[f.name])),
            "default": None if f.default is dataclasses.MISSING else f.default,
            **{
                key: value
                for key, value in f.metadata.get("option", {}).items()
                if value not in (None, "", ())
            },
        }
        for f in dataclasses.fields(cls)
        if f.init and f.compare  # what only describes is no option
    )


def _check_bounds(field: dataclasses.Field[Any], value: Any, what: str) -> None:
    words = field.metadata.get("option", {})
    least, above, among = (words.get(key) for key in ("least", "above", "among"))
    allowed = ""
    if least is not None and not value >= least:
        allowed = f"{least} or more"
    elif above is not None and not value > above:
        allowed = f"a number above {above:g}"
    elif among and value not in among:
        allowed = ", ".join(map(repr, among))
    if allowed:
        raise PlanError(f"{what} is given {field.name} = {value!r}", allowed=allowed)
