"""Dataclasses to plain values (numbers, text, lists, tables) and back, by the types of their fields; named tuples too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from meshwright.specs.error import MeshwrightError, SpecError, near_matches

Record = TypeVar("Record")
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Literal: "text",
    bool: "true or false",
    tuple: "a list",
}


def plain(value: Any, *, complete: bool = False) -> Any:
    """Tables for dataclasses, lists for tuples. Fields at their default are left out, unless it is to be `complete`."""
    if is_dataclass(value):
        told = (
            (field.name, getattr(value, field.name))
            for field in fields(value)
            if complete or getattr(value, field.name) != _default(field)
        )
        return {name: plain(inner, complete=complete) for name, inner in told if inner is not None}
    if isinstance(value, Mapping):
        return {str(key): plain(inner, complete=complete) for key, inner in value.items()}
    return [plain(inner, complete=complete) for inner in value] if isinstance(value, (tuple, list)) else value


def record(
    kind: type[Record],
    table: Mapping[str, Any],
    where: str,
    error: type[MeshwrightError] = SpecError,
    **given: Any,
) -> Record:
    """An object of a dataclass from the table of its fields, some of which are `given` as they are.

    Raises `error` naming `where` and the key that is unknown, missing, or not of its field's type.
    """
    known = [field for field in fields(kind) if field.name not in given]  # type: ignore[arg-type]
    check_keys(table, [field.name for field in known], where, error)
    for field in known:
        if field.name not in table and _default(field) is MISSING:
            near = near_matches(field.name, table)
            hint = f"did you write it as {near[0]!r}?" if near else f"add {field.name!r}"
            raise error(f"{where}: key {field.name!r} is missing", next=hint)
    hints = _hints(kind)  # type: ignore[arg-type]
    read = {key: converted(hints[key], value, f"{where}: {key!r}", error) for key, value in table.items()}
    return kind(**read, **given)


def check_keys(
    table: Mapping[str, Any], known: list[str], where: str, error: type[MeshwrightError] = SpecError
) -> None:
    """Refuse keys that mean nothing, with near matches."""
    for key in table:
        if key not in known:
            near = near_matches(key, known)
            hint = f"did you mean {' or '.join(near)}?" if near else "remove it"
            raise error(f"{where}: unknown key {key!r}", allowed=", ".join(known), next=hint)


def converted(kind: Any, value: Any, where: str, error: type[MeshwrightError] = SpecError) -> Any:
    """A plain value as one of the type `kind`. Raises `error` where it is of another."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return converted(_chosen(inner, value), value, where, error)
    if origin is Any or (origin is Literal and isinstance(value, str)):
        return value
    if is_dataclass(origin) and isinstance(value, Mapping):
        return record(origin, value, where, error)  # type: ignore[arg-type]
    if isinstance(origin, type) and issubclass(origin, tuple) and isinstance(value, (list, tuple)):
        is_named = origin is not tuple
        named = tuple(_hints(origin).values()) if is_named else inner
        kinds = named if named and named[-1] is not Ellipsis else (inner[0] if inner else Any,) * len(value)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            made = [converted(each, entry, f"{where}, entry {i}", error) for i, (each, entry) in pairs]
            return origin(*made) if is_named else tuple(made)
    if origin is Mapping and isinstance(value, Mapping):
        kind = inner[-1] if inner else Any
        return {key: converted(kind, entry, f"{where}, {key!r}", error) for key, entry in value.items()}
    if origin is float and type(value) in (int, float):
        return float(value)
    if type(value) is not origin:
        raise error(f"{where} is {value!r}", allowed=_WORDS.get(origin, "a table"))
    return value


def _chosen(kinds: tuple[Any, ...], value: Any) -> Any:
    """Of several types the one that the value is; of several dataclasses the one that knows most of a table's keys."""
    records = [kind for kind in kinds if is_dataclass(kind)]
    if records and isinstance(value, Mapping):
        return max(records, key=lambda kind: sum(field.name in value for field in fields(kind)))
    fitting = (kind for kind in kinds if isinstance(value, get_origin(kind) or kind))
    return next(fitting, next(kind for kind in kinds if kind is not NoneType))


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)
