"""A program as JSON and arrays: its tables, and the columns of lists that differ, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import CORE
from meshwright.ir.integrity import check_columns, check_tables
from meshwright.ir.program import COLUMN_TYPES, Axis, Columns, Program, Tables
from meshwright.ir.stored.equal_list import Ints, columns_of, first_equal, taken
from meshwright.ir.stored.table_row import READERS, plain_row, read_effect, read_row
from meshwright.ir.table import Hop, Microbatch
from meshwright.ir.vocabulary import Vocabulary
from meshwright.specs.bound.bound import MOST_ROWS, check_most
from meshwright.specs.error import ProgramError

Arrays = Mapping[str, NDArray[Any]]


def _text(word: Any) -> str:
    if not isinstance(word, str):
        raise TypeError(f"{word!r} is no text")
    return word


def _path(hops: Any) -> tuple[Hop, ...]:
    return tuple(read_row(Hop, hop) for hop in hops)


_READER_OF: dict[str, Callable[[Any], Any]] = {
    "effects": read_effect, "value_kinds": READERS["value"], "works": READERS["work"], "exchanges": READERS["exchange"],
    "streams": _text, "microbatches": partial(read_row, Microbatch), "paths": _path, "groups": READERS["group"],
    "sizes": READERS["size"], "value_bytes": READERS["bytes"], "duties": READERS["duty"], "stage_names": _text,
}  # fmt: skip


def tables_of(program: Program) -> dict[str, Any]:
    """What a program says beside its rows, as JSON has it."""
    tables = {each.name: plain_row(getattr(program.tables, each.name)) for each in fields(Tables)}
    return {"axes": plain_row(program.axes), "owners": list(program.vocabulary.owners), "tables": tables}


def arrays_of_program(program: Program, times: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[Any]]:
    """Rows and their times, ``[iterations, rows]``, of the lists that differ in either: ``list_number`` says for every
    list which of them it is."""
    first = first_equal(
        program.offsets, [*columns_of(program), *(row for time in times.values() for row in time)]
    )
    lists, number = np.unique(first, return_inverse=True)
    kept = taken(program.offsets, lists, program.after)
    columns = {f"column_{name}": getattr(program.columns, name)[kept.rows] for name in COLUMN_TYPES}
    places = {"list_number": number.ravel(), "list_offsets": kept.offsets, "after": kept.after}
    return {**columns, **places, **{name: time[:, kept.rows] for name, time in times.items()}}


def program_of_arrays(
    said: Mapping[str, Any], arrays: Arrays, names: tuple[str, ...]
) -> tuple[Program, list[NDArray[np.float64]]]:
    """The program, and its times of these names.

    Raises:
        ValueError, KeyError, TypeError: arrays or tables are none of a program. ProgramError: their numbers point to nothing.
    """
    number, offsets, after = (_whole(arrays[name]) for name in ("list_number", "list_offsets", "after"))
    axes = tuple(read_row(Axis, axis) for axis in said["axes"])
    _check_lists(axes, number, offsets, len(arrays["column_effect"]))
    check_most("rows of its program", int(np.diff(offsets)[number].sum()), MOST_ROWS, ProgramError)
    if after.shape[1:] != (2,) or (np.diff(after[:, 0]) < 0).any():
        raise ValueError("what its rows wait for is not said by sorted pairs")
    found = taken(offsets, number, after)
    columns = {name: _column(arrays[f"column_{name}"], int(offsets[-1]))[found.rows] for name in COLUMN_TYPES}
    tables = Tables(**{name: tuple(map(read, said["tables"][name])) for name, read in _READER_OF.items()})
    vocabulary = CORE | Vocabulary(owners=tuple(map(_text, said["owners"])))
    program = Program(axes, tables, Columns(**_typed(columns)), found.offsets, found.after, vocabulary)
    check_tables(program)
    check_columns(program)
    return program, [_time(arrays[name], int(offsets[-1]))[:, found.rows] for name in names]


def _check_lists(axes: tuple[Axis, ...], number: Ints, offsets: Ints, num_rows: int) -> None:
    """Raise ValueError where lists are not those of the axes, or do not stand one behind the other."""
    if not axes or min(axis.size for axis in axes) < 1 or len({axis.name for axis in axes}) < len(axes):
        raise ValueError("it names no axes, or one twice, or one of no size")
    num_lists = prod(axis.size for axis in axes if axis.materialised)
    is_run = offsets.ndim == 1 and len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == num_rows
    if (
        not is_run
        or (np.diff(offsets) < 0).any()
        or number.shape != (num_lists,)
        or not ((number >= 0) & (number < len(offsets) - 1)).all()
    ):
        raise ValueError("its lists are not those of its axes")


def _whole(values: NDArray[Any]) -> Ints:
    if values.dtype.kind not in "iu":
        raise ValueError("numbers of its lists are not whole")
    return values.astype(np.int64)


def _column(values: NDArray[Any], num_rows: int) -> NDArray[Any]:
    if values.shape != (num_rows,) or values.dtype.kind not in "iu":
        raise ValueError("a column has not a whole number for every row")
    return values


def _typed(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    given = Columns.of(0)
    return {name: given.with_column(name, values).__dict__[name] for name, values in columns.items()}


def _time(values: NDArray[Any], num_rows: int) -> NDArray[np.float64]:
    if values.ndim != 2 or not len(values) or values.shape[1] != num_rows:
        raise ValueError("its times are not one row for every iteration and one column for every instruction")
    return values.astype(np.float64)
