"""critical_path: the chain of instructions, each of which began when the one before it was over, that ends a trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.timing.dependency_table import RING
from meshwright.ir.timing.wiring import Wiring

Rows = NDArray[np.int64]
Times = NDArray[np.float64]


def critical_path(wiring: Wiring, start_s: Times, end_s: Times) -> Rows:
    """Rows from the first of an iteration to the one that ends last, each behind what it waited for longest: the one before
    it in its stream, what it reads, or what the other ends of its exchange waited for. Times: of one iteration, [rows].

    What an iteration before has to end is not followed: there the chain begins.
    """
    if not len(end_s):
        return np.empty(0, dtype=np.int64)
    before = _before_in_stream(wiring)
    row = int(np.argmax(end_s))
    chain, seen = [row], {row}
    while True:
        ends = _ends_of(wiring, row)
        waited = [each for end in ends for each in _waited_for(wiring, before, end) if each not in seen]
        if not waited:
            break
        row = max(waited, key=lambda each: (end_s[each], start_s[each]))
        chain.append(row)
        seen.add(row)
    return np.array(chain[::-1], dtype=np.int64)


def _before_in_stream(wiring: Wiring) -> Rows:
    """The row in front of each in its stream, or -1."""
    rows, first = wiring.stream_rows.astype(np.int64), wiring.stream_ptr[:-1]
    earlier = np.concatenate([[-1], rows[:-1]])
    earlier[first[first < len(rows)]] = -1
    found = np.empty(len(rows), dtype=np.int64)
    found[rows] = earlier
    return found


def _ends_of(wiring: Wiring, row: int) -> list[int]:
    """All ends of a row's exchange, itself first."""
    ends, other = [row], int(wiring.next_end[row])
    while other not in (row, -1):
        ends.append(other)
        other = int(wiring.next_end[other])
    return ends


def _waited_for(wiring: Wiring, before: Rows, row: int) -> list[int]:
    """What a row waits for in its own iteration."""
    deps = wiring.deps
    own = slice(int(deps.ptr[row]), int(deps.ptr[row + 1]))
    now = (deps.lag[own] == 0) & (deps.version[own] != RING)
    found: list[int] = deps.row[own][now].tolist()
    return [*found, int(before[row])] if before[row] >= 0 else found
