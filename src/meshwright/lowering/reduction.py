"""Gradient reduction and the optimizer step: one collective a parameter group behind its last contribution, then STEP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Exchange
from meshwright.ir.vocabulary import NAMES, STEP_REDUCED
from meshwright.lowering.order import FIRST_AXIS, with_effects


@dataclass(frozen=True)
class ReduceGradients:
    """Insert REDUCE_GRAD for every group that is replicated, on stream ``reduce``, behind the last B or W of its stage.

    Groups are the buckets: each is one collective over exactly the axes on which it is replicated (for tied parameters
    also the devices of its stages), so later buckets travel while the step of earlier ones runs.
    """

    algorithm: str = "ring"
    name = "reduce_gradients"

    def __call__(self, program: Program) -> Program:
        """The program with its reductions."""
        program, (effect,) = with_effects(program, NAMES["REDUCE_GRAD"].effect)
        t = program.tables
        exchanges, streams = list(t.exchanges), list(t.streams)
        if "reduce" not in streams:
            streams.append("reduce")
        before, lists, rows = [], [], []
        for stage, own in enumerate(t.groups_of_stage):
            last = self._last_contribution(program, stage)
            for part, g in enumerate(own):
                exchange = self._exchange(program, g)
                if exchange is None:
                    continue
                if exchange not in exchanges:
                    exchanges.append(exchange)
                before.append(last + 1)
                lists.append(int(program.list_of_row[last]))
                rows.append((stage, part, exchanges.index(exchange)))
        if not rows:
            return program
        table = np.array(rows)
        duties = (*t.duties, Duty("REDUCE_GRAD", "group"))
        program = program.with_tables(exchanges=tuple(exchanges), streams=tuple(streams), duties=duties)
        new = Columns.of(
            len(rows), effect=effect, stage=table[:, 0], hop=_hop_of_stage(program)[table[:, 0]], part=table[:, 1],
            exchange=table[:, 2], stream=streams.index("reduce"),
        )  # fmt: skip
        return program.inserted(np.array(before), np.array(lists), new)

    def _last_contribution(self, program: Program, stage: int) -> int:
        t, c = program.tables, program.columns
        writers = [e for e, effect in enumerate(t.effects) if any(p.kind == "weight_gradient" for p in effect.writes)]
        return int(np.flatnonzero((c.stage == stage) & np.isin(c.effect, writers))[-1])

    def _exchange(self, program: Program, group: int) -> Exchange | None:
        """The class of a group's reduction, or None where there is nobody to reduce with."""
        row = program.tables.groups[group]
        axes = tuple(a for a in row.replicated if program.axis(a).size > 1)
        devices = sorted({hop.device for path in program.tables.paths for hop in path if hop.stage in row.stages})
        if len(devices) > 1:
            return Exchange((FIRST_AXIS, *axes), tuple(devices), algorithm=self.algorithm)
        return Exchange(axes, algorithm=self.algorithm) if axes else None


@dataclass(frozen=True)
class OptimizerStep:
    """One STEP a stage at the end of its list; it reads the reduced gradients where there are any."""

    name = "optimizer_step"

    def __call__(self, program: Program) -> Program:
        """The program with its steps."""
        reduced = any(duty.name == "REDUCE_GRAD" for duty in program.tables.duties)
        program, (plain, behind) = with_effects(program, NAMES["STEP"].effect, STEP_REDUCED)
        devices = {hop.stage: hop.device for path in program.tables.paths for hop in path}
        stages = sorted(devices)
        lists = np.array([devices[stage] for stage in stages])
        rows = Columns.of(
            len(stages), effect=behind if reduced else plain, stage=stages, hop=_hop_of_stage(program)[np.array(stages)]
        )
        program = program.with_tables(duties=(*program.tables.duties, Duty("STEP", "stage")))
        return program.inserted(program.offsets[lists + 1], lists, rows)


def _hop_of_stage(program: Program) -> np.ndarray:
    """The first hop at which any path visits each stage."""
    result = np.zeros(program.tables.num_stages, dtype=np.int64)
    for path in reversed(program.tables.paths):
        for hop in reversed(range(len(path))):
            result[path[hop].stage] = hop
    return result
