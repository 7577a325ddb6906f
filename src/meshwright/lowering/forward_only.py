"""ForwardOnly: what is left of a program when nothing is trained: the forwards, and what they need on every device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import GRADIENT_KINDS
from meshwright.ir.program import Program
from meshwright.ir.table import Effect
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.timing.matching import match
from meshwright.lowering.order import with_effects
from meshwright.specs.error import ProgramError

# What ends in the loss: the last forward, or T where the vocabulary is split.
LOSSES = ("F", "T")
KEPT_FOR_BACKWARD = ("saved", *GRADIENT_KINDS, "output_part")


@dataclass(frozen=True)
class ForwardOnly:
    """Keep every F, the loss, and what they depend on within the iteration: transfers, gathers of weights, loads.

    The order of what stays is the order that it had, so it is legal where the whole program was. An F keeps nothing for
    a backward. Parameters are read as they are: nothing of the program writes them.
    """

    name = "forward_only"

    def __call__(self, program: Program) -> Program:
        """The program of the forwards.

        Raises:
            ProgramError: it has no F.
        """
        names = [effect.name for effect in program.tables.effects]
        wanted = np.array([name in LOSSES for name in names])[program.columns.effect]
        if not wanted.any():
            raise ProgramError("the program has no F, so it has no forwards", allowed="a program that trains")
        kept = np.flatnonzero(_needed(program, wanted))
        counts = np.bincount(program.list_of_row[kept], minlength=program.num_lists)
        short = program.reordered(kept, np.concatenate([[0], np.cumsum(counts)]))
        short = _without_backward(short)
        duties = tuple(d for d in short.tables.duties if d.name in LOSSES)
        return short.with_tables(duties=duties)


def _needed(program: Program, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rows wanted, and all that they wait for within an iteration: writers of what they read, other ends. Not who added
    to a gradient before: nothing is added to it here."""
    deps, next_end = dependencies(program), match(program)
    space = deps.space
    accumulates = np.array([kind.accumulates for kind in program.tables.value_kinds])
    is_sum = np.repeat(accumulates, space.counts)
    needed = wanted.copy()
    stack = np.flatnonzero(wanted).tolist()
    while stack:
        row = stack.pop()
        edges = slice(int(deps.ptr[row]), int(deps.ptr[row + 1]))
        version = deps.version[edges]
        is_read = (deps.lag[edges] == 0) & (version >= 0)
        is_read[is_read] = ~is_sum[deps.code[version[is_read]]]
        for other in (*deps.row[edges][is_read].tolist(), int(next_end[row])):
            if not needed[other]:
                needed[other] = True
                stack.append(other)
    return needed


def _without_backward(program: Program) -> Program:
    """The program whose rows write nothing that only a backward reads."""
    chosen, effects = program.columns.effect, program.tables.effects
    for place, effect in enumerate(effects):
        less = _less(effect)
        if less != effect and (program.columns.effect == place).any():
            program, (other,) = with_effects(program, less)
            chosen = np.where(program.columns.effect == place, other, chosen)
    return program.with_columns(effect=chosen)


def _less(effect: Effect) -> Effect:
    if effect.name not in LOSSES:
        return effect
    return effect._replace(writes=tuple(p for p in effect.writes if p.kind not in KEPT_FOR_BACKWARD))
