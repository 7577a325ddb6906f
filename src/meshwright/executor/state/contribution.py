"""Which computes of a program are the last to add a microbatch's gradients to a group, and how many a rank has of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import GRADIENT_KINDS
from meshwright.ir.program import Program
from meshwright.ir.table import Kind


def adding_rows(program: Program) -> NDArray[np.int64]:
    """Rows that are computes and add to gradients of parameters."""
    adds = [
        effect.kind == Kind.COMPUTE and any(p.kind in GRADIENT_KINDS for p in effect.writes)
        for effect in program.tables.effects
    ]
    return np.flatnonzero(np.array(adds, bool)[program.columns.effect])


def last_contributions(program: Program, own: range, stage_of: Sequence[int]) -> dict[int, list[int]]:
    """By position in a rank's list the groups to which a compute is the last to add for one microbatch: of those that are
    scattered of all stages there, of others of the stage that it is a segment of.

    ``own``: rows of the list; ``stage_of``: the stage of the training that each stage of the program is part of.
    """
    tables, columns = program.tables, program.columns
    last: dict[tuple[int, int, int], int] = {}
    rows = adding_rows(program)
    for row in rows[(rows >= own.start) & (rows < own.stop)].tolist():
        stage = int(columns.stage[row])
        for g in tables.groups_of_stage[stage]:
            of = -1 if tables.groups[g].scattered else stage_of[stage]
            last[g, of, int(columns.microbatch[row])] = row - own.start
    closed: dict[int, list[int]] = {}
    for (g, _, _), number in last.items():
        closed.setdefault(number, []).append(g)
    return closed


def most_contributions(program: Program, group: int, stage_of: Sequence[int]) -> int:
    """Gradients of a group, by stage of the training and microbatch, that the rank makes which makes most of them."""
    columns, rows = program.columns, adding_rows(program)
    of_group = [group in groups for groups in program.tables.groups_of_stage]
    rows = rows[np.array(of_group, bool)[columns.stage[rows]]]
    stages = np.array(stage_of)[columns.stage[rows]]
    made = np.unique(np.stack([program.list_of_row[rows], stages, columns.microbatch[rows]]), axis=1)
    return int(np.bincount(made[0]).max(initial=0))
