"""The optimizer's state in the memory of the host: loaded before a device's step, stored behind it (ZeRO-Offload's memory,
Ren et al. 2021, arXiv 2101.06840, with the step itself on the device)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.ir.core_vocabulary import HOST_STATE, LOAD_STATE, MASTER_COPY, STORE_STATE
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import ValueBytes, Work
from meshwright.lowering.order import due_with_step, with_effects
from meshwright.lowering.pipeline import Lowering, Pass, Works
from meshwright.specs.operator import Operator
from meshwright.stage.group.parameter_group import num_stepped_parameters
from meshwright.stage.group.value_size import moment_bytes, optimizer_size

STATE = "optimizer_state"
PASSES = ("F", "R", "B", "I", "W")


@dataclass(frozen=True)
class OffloadOptimizer:
    """A LOAD_STATE before, and a STORE_STATE behind, the STEP of every stage, on streams of their own.

    Between two steps the state is on the host only. Loads stand before the first STEP of their device, so that those of
    later stages travel while the first one steps, and wait (``after``) for the device's last pass over a microbatch; stores
    travel beside what comes next, the next iteration's computes.

    `moved_share`: of the state's bytes, those of the moments, which the step alone reads; a master copy of the parameters is
    the rest, and stays. `waits_for_sums`: loads also wait for the reductions of their stage, which leave a shard of its whole
    gradients: so the state never is beside these.
    """

    moved_share: float = 1.0
    waits_for_sums: bool = False
    name = "offload_optimizer"

    def __call__(self, program: Program) -> Program:
        """The program with its loads and stores; it has its STEPs."""
        t, c = program.tables, program.columns
        steps = np.flatnonzero(np.array([effect.name == "STEP" for effect in t.effects])[c.effect])
        loads, stores = [], []
        for row in steps.tolist():
            places = tuple(p for p in t.effects[int(c.effect[row])].writes if p.kind == STATE)
            hosts = tuple(p._replace(kind=HOST_STATE.name) for p in places)
            load = LOAD_STATE._replace(reads=hosts, writes=places)
            program, found = with_effects(program, load, STORE_STATE._replace(reads=places, writes=hosts))
            loads.append(found[0])
            stores.append(found[1])
        program = self._with_tables(_reading_copies(program) if self.moved_share < 1.0 else program)
        lists = program.list_of_row[steps]
        first = np.array([int(steps[lists == one].min()) for one in lists.tolist()], dtype=np.int64)
        own = program.columns.take(steps).with_column("work", np.full(len(steps), -1))

        def rows(effects: Sequence[int], stream: str) -> Columns:
            number = program.tables.streams.index(stream)
            return own.with_column("effect", effects).with_column("stream", np.full(len(steps), number))

        new = Columns.concatenate([rows(loads, "load"), rows(stores, "store")])
        before = np.concatenate([first, program.offsets[lists + 1]])
        program = program.inserted(before, np.concatenate([lists, lists]), new)
        return _loading_late(program, self.waits_for_sums)

    def _with_tables(self, program: Program) -> Program:
        """With the streams; the state on the device is made by each load, and on the host it is carried."""
        t = program.tables
        streams = (*t.streams, *(name for name in ("load", "store") if name not in t.streams))
        kinds = tuple(kind._replace(carried=False) if kind.name == STATE else kind for kind in t.value_kinds)
        state = next((row.by_index for row in t.value_bytes if row.kind == STATE), ())
        moved = tuple(each * self.moved_share for each in state)
        stays = tuple(each - part for each, part in zip(state, moved, strict=True))
        sizes = [ValueBytes(STATE, moved), ValueBytes(HOST_STATE.name, moved)] if state else []
        sizes += [ValueBytes(MASTER_COPY.name, stays)] if any(stays) else []
        others = (row for row in t.value_bytes if row.kind != STATE)
        duties = (*t.duties, *(due_with_step(program, each.name) for each in (LOAD_STATE, STORE_STATE)))
        return program.with_tables(
            streams=streams, value_kinds=kinds, value_bytes=(*others, *sizes), duties=duties
        )


def _reading_copies(program: Program) -> Program:
    """Steps read the master copies of the groups whose state they read."""
    chosen = program.columns.effect.copy()
    for place, effect in enumerate(program.tables.effects):
        copies = tuple(p._replace(kind=MASTER_COPY.name) for p in effect.reads if p.kind == STATE)
        if effect.name == "STEP" and copies:
            program, (number,) = with_effects(program, effect._replace(reads=(*effect.reads, *copies)))
            chosen[program.columns.effect == place] = number
    return program.with_columns(effect=chosen)


def _loading_late(program: Program, waits_for_sums: bool) -> Program:
    """Loads wait for the last pass over a microbatch: earlier they would hold memory while activations do."""
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    loads = np.flatnonzero(names == LOAD_STATE.name)
    passes = np.flatnonzero(np.isin(names, PASSES))
    last = {int(program.list_of_row[row]): int(row) for row in passes}  # rising: the last one stays
    pairs = np.array([(row, last[int(program.list_of_row[row])]) for row in loads.tolist()], dtype=np.int64)
    if waits_for_sums:
        where, stage = program.list_of_row, program.columns.stage
        sums = np.flatnonzero(np.isin(names, ("SCATTER_GRAD", "REDUCE_GRAD", "SUM_GRAD")))
        awaited = (
            (row, sums[(where[sums] == where[row]) & (stage[sums] == stage[row])]) for row in loads.tolist()
        )
        behind = [(row, int(one)) for row, found in awaited for one in found]
        pairs = np.concatenate([pairs.reshape(-1, 2), np.array(behind, dtype=np.int64).reshape(-1, 2)])
    written = np.unique(np.concatenate([program.after, pairs.reshape(-1, 2)]), axis=0)
    return replace(program, after=written)


@dataclass(frozen=True)
class OptimizerOnHost:
    """The optimizer's moments are in the memory of the host between two steps."""

    name = OffloadOptimizer.name
    after = ("optimizer_step", "clip_gradients")
    before = ()

    def made(self, lowering: Lowering) -> Pass | None:
        """Moments move, a master copy stays."""
        plan = lowering.plan
        moved_share = moment_bytes(plan) / (optimizer_size(plan).num_bytes or 1)
        return OffloadOptimizer(moved_share, plan.shared.divides_state) if lowering.has_step else None

    def works(self, lowering: Lowering, program: Program) -> Works:
        """What loads and stores move: moments of every parameter that the STEP of a stage updates."""
        plan, found = lowering.plan, {}
        for stage, number in enumerate(num_stepped_parameters(program, lowering.held)):
            num_bytes = moment_bytes(plan) * number
            operators = (Operator("host_copy", 0.0, num_bytes, (number,), label="optimizer state"),)
            for name in (LOAD_STATE.name, STORE_STATE.name):
                found[name, stage] = Work(name, 0, (number,), plan.dtype, 0.0, num_bytes, 1.0, operators)
        return found
