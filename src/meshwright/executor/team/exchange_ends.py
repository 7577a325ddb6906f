"""Which ranks exchange with which: the ends of a row's exchange, and the process groups that a program needs."""

from __future__ import annotations

import numpy as np

from meshwright.ir.table import Kind
from meshwright.ir.timing.wiring import Wiring


def ends_of(wiring: Wiring, row: int) -> list[int]:
    """All ends of an exchange, this row's among them, in program order."""
    ends, other = [row], int(wiring.next_end[row])
    while other != row:
        ends.append(other)
        other = int(wiring.next_end[other])
    return sorted(ends)


def teams_of(wiring: Wiring, backend: str) -> list[tuple[tuple[int, ...], str]]:
    """The process groups that the whole program needs: (ranks, name), the same on all ranks."""
    program = wiring.program
    lists, teams = program.list_of_row, set()
    for i in np.flatnonzero(program.kinds == Kind.COLLECTIVE).tolist():
        ranks = tuple(int(lists[e]) for e in ends_of(wiring, i))
        teams.add((ranks, program.tables.streams[program.columns.stream[i]]))
    if backend == "nccl":
        for i in np.flatnonzero(program.kinds == Kind.SEND).tolist():
            source, target = (int(lists[e]) for e in (i, int(wiring.next_end[i])))
            teams.add((tuple(sorted((source, target))), f"{source}>{target}"))
    return sorted(teams)
