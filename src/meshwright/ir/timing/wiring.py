"""Wiring: a program compiled for replay, who waits for whom as flat tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.kernel.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.timing.dependency_table import Dependencies
from meshwright.ir.timing.matching import match

Ints = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Wiring:
    """A program compiled for replay: dependencies, exchange partners, and the streams as flat lists of rows."""

    program: Program
    deps: Dependencies
    next_end: Ints
    stream_ptr: Ints
    stream_rows: Ints
    stream_of_row: Ints


def wire(program: Program) -> Wiring:
    """Compile a program once; `replay`, `verify` and the engines reuse it.

    Raises:
        ProgramError, ScheduleError: as `dependencies` and `match`.
    """
    deps = dependencies(program)
    next_end = match(program, deps.space)
    num_streams = len(program.tables.streams)
    key = program.list_of_row * np.int32(num_streams) + program.columns.stream
    counts = np.bincount(key, minlength=program.num_lists * num_streams)
    used = np.flatnonzero(counts)
    number = np.zeros(len(counts), dtype=np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    of_row = number[key]
    ptr = np.concatenate([[0], np.cumsum(counts[used])]).astype(np.int32)
    rows = np.zeros(program.num_rows, dtype=np.int32)
    call(_fill_streams, program.num_rows, (of_row, ptr[:-1].copy()), [rows])
    return Wiring(program, deps, next_end, ptr, rows, of_row)


def _fill_streams(of_row: Any, place: Any, rows: Any) -> int:
    """Kernel: a counting sort of the rows by stream; order within a stream stays."""
    for i in range(len(of_row)):
        rows[place[of_row[i]]] = i
        place[of_row[i]] += 1
    return 0
