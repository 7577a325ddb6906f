"""Recompute: forward keeps only its input; R makes what backward needs, once, shared by both halves of a split one.

Where only some blocks of a stage are recomputed, forward keeps what the others need, and R makes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.ir.core_vocabulary import F_RECOMPUTED, REMADE, SAVED, R
from meshwright.ir.program import Program
from meshwright.ir.table import Duty, Effect, Pattern
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering
from meshwright.stage.saved.recomputed import is_partly_recomputed, is_recomputed

BACKWARD = ("B", "I", "W")
R_PARTLY = R._replace(reads=(*R.reads, SAVED), writes=(Pattern(REMADE.name),))


@dataclass(frozen=True)
class Recompute:
    """Insert R before every B or I of ``stages`` (None: all), and let their F keep nothing but its input.

    ``partly``: stages that are recomputed in part: their F stays as it is, R makes what it did not keep. A pass that
    replaces B stands before this one.
    """

    stages: tuple[int, ...] | None = None
    partly: tuple[int, ...] = ()
    name = "recompute"

    def __call__(self, program: Program) -> Program:
        """The program with its R."""
        program, (f, r) = with_effects(program, F_RECOMPUTED, R)
        if self.partly:
            program, r_partly = _reading_remade(program, self.partly)
        t, c = program.tables, program.columns
        names = np.array([effect.name for effect in t.effects])[c.effect]
        chosen = np.ones(len(c), dtype=bool) if self.stages is None else np.isin(c.stage, self.stages)
        is_partly = np.isin(c.stage, self.partly)
        chosen &= ~is_partly
        rows = np.flatnonzero((chosen | is_partly) & np.isin(names, ("B", "I")))
        program = program.with_columns(effect=np.where(chosen & (names == "F"), f, c.effect))
        is_everywhere = self.stages is None
        program = program.with_tables(duties=(*t.duties, Duty("R", "path" if is_everywhere else "some")))
        again = (
            program.columns.take(rows)
            .with_column("effect", np.where(is_partly[rows], r_partly if self.partly else r, r))
            .with_column("work", np.full(len(rows), -1))
        )
        return program.inserted(rows, program.list_of_row[rows], again)


def _reading_remade(program: Program, stages: tuple[int, ...]) -> tuple[Program, int]:
    """The program with backwards of these stages that read what R makes beside what F keeps; the place of that R."""
    program, (again,) = with_effects(program, R_PARTLY)
    is_partly, effects = np.isin(program.columns.stage, stages), program.tables.effects
    chosen = program.columns.effect
    for place, effect in enumerate(effects):
        if effect.name in BACKWARD:
            program, (reading,) = with_effects(program, _with_remade(effect))
            chosen = np.where(is_partly & (program.columns.effect == place), reading, chosen)
    return program.with_columns(effect=chosen), again


def _with_remade(effect: Effect) -> Effect:
    """The effect reading it, too; last, so that the places of its other operands stay."""
    return effect._replace(reads=(*effect.reads, Pattern(REMADE.name)))


def recomputed(lowering: Lowering) -> Recompute:
    """All stages of the program, or those with blocks that are recomputed, wholly or in part."""
    plan, stages = lowering.plan, lowering.stages
    whole = tuple(number for number, layers in enumerate(stages) if is_recomputed(plan, layers))
    partly = tuple(number for number, layers in enumerate(stages) if is_partly_recomputed(plan, layers))
    return Recompute(None if len(whole) == len(stages) else whole, partly)
