"""Split backward: B becomes I (input gradient) and W (weight gradient) behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.ir.core_vocabulary import I, W
from meshwright.ir.program import Program
from meshwright.ir.table import Duty
from meshwright.lowering.order import with_effects


def _halves(duty: Duty) -> tuple[Duty, Duty]:
    """What is due instead of a backward."""
    return duty._replace(name="I"), duty._replace(name="W")


@dataclass(frozen=True)
class SplitBackward:
    """Replace every B by I, and W right behind it. A schedule that splits by itself places W where it wants."""

    name = "split_backward"

    def __call__(self, program: Program) -> Program:
        """The program with I and W instead of B."""
        program, (i, w) = with_effects(program, I, W)
        t, c = program.tables, program.columns
        is_b = np.isin(c.effect, [e for e, effect in enumerate(t.effects) if effect.name == "B"])
        rows = np.flatnonzero(is_b)
        duties = tuple(new for duty in t.duties for new in (_halves(duty) if duty.name == "B" else (duty,)))
        program = program.with_tables(duties=duties).with_columns(effect=np.where(is_b, i, c.effect))
        halves = program.columns.take(rows).with_column("effect", np.full(len(rows), w))
        return program.inserted(rows + 1, program.list_of_row[rows], halves)
