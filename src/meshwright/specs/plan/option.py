"""Options by name: what a file or a reference gives, checked against the fields of a frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from meshwright.specs.error import PlanError
from meshwright.specs.option import GivenOption

TYPES = {"int": int, "float": float, "str": str, "bool": bool}


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
    """What `list` shows of every option: name, type, default, help, bounds."""
    types = get_type_hints(cls)
    return tuple(
        {
            "name": f.name,
            "type": getattr(types[f.name], "__name__", str(types[f.name])),
            "default": None if f.default is dataclasses.MISSING else f.default,
            **_told(f),
        }
        for f in dataclasses.fields(cls)
        if f.init and f.compare  # what only describes is no option
    )


def _told(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """What an option says of itself."""
    told: GivenOption | None = field.metadata.get("option")
    said = {} if told is None else {"help": told.help, "least": told.least, "above": told.above}
    return {key: value for key, value in said.items() if value is not None}


def _check_bounds(field: dataclasses.Field[Any], value: Any, what: str) -> None:
    told: GivenOption | None = field.metadata.get("option")
    if told is None:
        return
    allowed = ""
    if told.least is not None and not value >= told.least:
        allowed = f"{told.least:g} or more"
    elif told.above is not None and not value > told.above:
        allowed = f"a number above {told.above:g}"
    if allowed:
        raise PlanError(f"{what} is given {field.name} = {value!r}", allowed=allowed)
