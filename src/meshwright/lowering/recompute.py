"""Recompute: forward keeps only its input; R makes what backward needs, once, shared by both halves of a split one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.table import Duty
from meshwright.ir.vocabulary import F_RECOMPUTED, NAMES
from meshwright.lowering.order import with_effects


@dataclass(frozen=True)
class Recompute:
    """Insert R before every B or I of ``stages`` (None: all), and let their F keep nothing but its input."""

    stages: tuple[int, ...] | None = None
    name = "recompute"

    def __call__(self, program: Program) -> Program:
        """The program with its R."""
        program, (f, r) = with_effects(program, F_RECOMPUTED, NAMES["R"].effect)
        t, c = program.tables, program.columns
        names = np.array([effect.name for effect in t.effects])[c.effect]
        chosen = np.ones(len(c), dtype=bool) if self.stages is None else np.isin(c.stage, self.stages)
        rows = np.flatnonzero(chosen & np.isin(names, ("B", "I")))
        program = program.with_columns(effect=np.where(chosen & (names == "F"), f, c.effect))
        program = program.with_tables(
            duties=(*t.duties, Duty("R", "path" if self.stages is None else "some"))
        )
        again = (
            program.columns.take(rows)
            .with_column("effect", np.full(len(rows), r))
            .with_column("work", np.full(len(rows), -1))
        )
        return program.inserted(rows, program.list_of_row[rows], again)
