"""Rows of a program's tables as JSON, and back: every field in its place, and of the type that it declares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable
from functools import cache
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from meshwright.ir.table import (
    Duty,
    Effect,
    Exchange,
    Inner,
    Kind,
    ParameterGroup,
    Pattern,
    Size,
    ValueBytes,
    ValueKind,
    Work,
    said,
)
from meshwright.specs.operator import Operator

_TABLES: dict[str, type] = {
    "value": ValueKind, "work": Work, "exchange": Exchange, "size": Size, "group": ParameterGroup,
    "bytes": ValueBytes, "duty": Duty,
}  # fmt: skip


def row_text(row: Any) -> str:
    """A table row as JSON: its fields in order, kinds by name."""
    return json.dumps(plain_row(row), separators=(",", ":"))


def plain_row(value: Any) -> Any:
    """A table row, or what stands in one, as JSON has it: tuples as lists, kinds by name."""
    if isinstance(value, Kind):
        return value.name
    if isinstance(value, Operator):
        return {name: plain_row(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return [plain_row(item) for item in said(value)]
    return value


def read_row(table: type, row: Any) -> Any:
    """A row of a table from JSON."""
    return _typed(table(*_tuples(row)))


def _size(row: Any) -> Size:
    """A size from JSON; texts of before have an empty list of counts by peer behind it."""
    has_peers = isinstance(row, list) and len(row) == len(Size._fields) + 1 and row[-1] == []
    size: Size = read_row(Size, row[:-1] if has_peers else row)
    return size


def _typed(made: Any) -> Any:
    """The row, every field of the type that it declares."""
    for name, is_of in _fields_of(cast(Hashable, type(made))):
        if not is_of(getattr(made, name)):
            raise TypeError(f"its {name} is {getattr(made, name)!r}")
    return made


def _is_of(declared: Any) -> Callable[[Any], bool]:
    """Whether a value is of a declared type. A whole number is a float, too; one that is not finite is none."""
    origin, within = get_origin(declared), get_args(declared)
    if origin is tuple:
        is_item = _is_of(within[0])
        return lambda value: isinstance(value, tuple) and all(map(is_item, value))
    if origin is Literal:
        return within.__contains__
    if origin is UnionType:
        any_of = tuple(map(_is_of, within))
        return lambda value: any(is_of(value) for is_of in any_of)
    if declared is int:
        return lambda value: type(value) is int
    if declared is float:
        return lambda value: type(value) is int or (type(value) is float and math.isfinite(value))
    return lambda value: isinstance(value, declared)


@cache
def _fields_of(table: Any) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    """Every field of a table's rows, with the question whether a value is of its type."""
    return tuple((name, _is_of(declared)) for name, declared in get_type_hints(table).items())


def read_effect(row: Any) -> Effect:
    """An effect from JSON; TypeError, ValueError or KeyError where it is none."""
    kind, name, reads, writes, moves = row
    patterns = [tuple(read_row(Pattern, p) for p in side) for side in (reads, writes)]
    moved = None if moves is None else read_row(Pattern, moves)
    return read_row(Effect, [Kind[kind], name, *patterns, moved])  # type: ignore[no-any-return]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _work(row: Any) -> Work:
    # texts from before works had exchanges inside end with the operators
    *fields, operators, inner = row if len(row) == len(Work._fields) else [*row, []]
    made = tuple(_typed(Operator(**{k: _tuples(v) for k, v in each.items()})) for each in operators)
    exchanges = tuple(read_row(Inner, [read_row(Exchange, exchange), *rest]) for exchange, *rest in inner)
    return read_row(Work, [*fields, made, exchanges])  # type: ignore[no-any-return]


# What reads a row of a table, by its word in a program's text.
READERS: dict[str, Callable[[Any], Any]] = {
    word: (lambda row, table=table: read_row(table, row)) for word, table in _TABLES.items()
} | {"work": _work, "size": _size}
