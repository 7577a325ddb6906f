"""Orders of computes become a program: paths, duties and effects; nothing is sent yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.ir.program import Axis, Columns, Program, Tables, value_kinds_of
from meshwright.ir.table import Duty, Effect, Hop, Kind, Microbatch, ParameterGroup, Work
from meshwright.ir.vocabulary import VALUE_KINDS, name_of
from meshwright.schedules.order import Orders
from meshwright.specs.error import ScheduleError

FIRST_AXIS = "pp"  # the axis along which paths go
# Kinds that most passes touch stand in every table, so that passes seldom have to add one.
STANDARD_KINDS = (
    "activation",
    "gradient",
    "saved",
    "pending",
    "parameter",
    "optimizer_state",
    "weight_gradient",
    "reduced_gradient",
)


def program_of_orders(
    orders: Orders,
    *,
    microbatches: Sequence[Microbatch] | int | None = None,
    num_stages: int | None = None,
    groups: Sequence[ParameterGroup] = (),
    collapsed: Sequence[Axis] = (),
) -> Program:
    """A program of computes on the axis ``pp`` (one list a device) and any collapsed axes behind it.

    Where a stage stands is read from the lists: a placement is data, never a property of a schedule. `microbatches` and
    `num_stages` are what was asked for; None: what the lists have.

    Raises:
        ScheduleError: no computes, a stage on two devices, a gap in the stages, more or fewer stages or microbatches
            than were asked for, or a stage that never computes a microbatch.
    """
    if not any(orders):
        raise ScheduleError("the lists have no computes; return one list a device, such as ['F0', 'B0']")
    names = sorted({compute.name for row in orders for compute in row})
    effects = tuple(name_of(name).effect for name in names)
    others = [name for name in names if name_of(name).per != "path"]
    if others:
        raise ScheduleError(
            f"the order has {', '.join(others)}; it holds computes of stages (F, B, I, W), passes place all else"
        )
    if microbatches is None:
        microbatches = 1 + max(c.microbatch for row in orders for c in row)
        if microbatches > sum(map(len, orders)):
            raise ScheduleError(
                f"microbatch {microbatches - 1} is computed, but not all before it; number them from 0"
            )
    if isinstance(microbatches, int):
        microbatches = [Microbatch(1, 1.0 / microbatches)] * microbatches
    path = _path(orders)
    if num_stages is not None and len(path) != num_stages:
        raise ScheduleError(
            f"the order has {len(path)} stages, {num_stages} were asked for; a schedule with several stages a device "
            f"takes their number as its third argument, num_chunks"
        )
    _check_microbatches(orders, len(path), len(microbatches))
    number = {name: place for place, name in enumerate(names)}
    flat = [(number[c.name], c.stage, c.microbatch) for row in orders for c in row]
    table = np.array(flat, dtype=np.int64).reshape(-1, 3)
    tables = Tables(
        effects=effects,
        value_kinds=value_kinds_of(effects, [VALUE_KINDS[name] for name in STANDARD_KINDS]),
        microbatches=tuple(microbatches),
        paths=(path,),
        groups=tuple(groups),
        duties=tuple(Duty(name, name_of(name).per) for name in names),
    )
    columns = Columns.of(
        len(flat), effect=table[:, 0], stage=table[:, 1], hop=table[:, 1], microbatch=table[:, 2]
    )
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in orders])]).astype(np.int64)
    return Program((Axis(FIRST_AXIS, len(orders)), *collapsed), tables, columns, offsets)


def _path(orders: Orders) -> tuple[Hop, ...]:
    """Stage after stage, each where the lists have it."""
    device_of: dict[int, int] = {}
    for device, row in enumerate(orders):
        for stage in {compute.stage for compute in row}:
            if device_of.setdefault(stage, device) != device:
                raise ScheduleError(
                    f"stage {stage} stands on device {device_of[stage]} and on device {device}; a stage has one device"
                )
    missing = [stage for stage in range(len(device_of)) if stage not in device_of]
    if missing:
        raise ScheduleError(
            f"stages {missing} are on no device, but stage {max(device_of)} is; number stages from 0 without gaps"
        )
    return tuple(Hop(stage, device_of[stage]) for stage in range(len(device_of)))


def _check_microbatches(orders: Orders, num_stages: int, num_microbatches: int) -> None:
    cells = {(stage, microbatch) for row in orders for _, stage, microbatch in row}
    if max(microbatch for _, microbatch in cells) >= num_microbatches:
        device, position, compute = next(
            (device, position, compute)
            for device, row in enumerate(orders)
            for position, compute in enumerate(row)
            if compute.microbatch >= num_microbatches
        )
        raise ScheduleError(
            f"device {device}, position {position}: {compute.stage}{compute.name}{compute.microbatch}, "
            f"but there are {num_microbatches} microbatches, numbered from 0"
        )
    if len(cells) < num_stages * num_microbatches:
        every = ((stage, m) for m in range(num_microbatches) for stage in range(num_stages))
        stage, microbatch = next(cell for cell in every if cell not in cells)
        raise ScheduleError(
            f"stage {stage} never computes microbatch {microbatch} of {num_microbatches}; every stage computes each of them"
        )


def with_effects(program: Program, *effects: Effect) -> tuple[Program, list[int]]:
    """The program with these effects (and the value kinds they touch) in its tables, and their places."""
    table = list(program.tables.effects)
    for effect in effects:
        if effect not in table:
            table.append(effect)
    kinds = value_kinds_of(table, program.tables.value_kinds)
    return program.with_tables(effects=tuple(table), value_kinds=kinds), [
        table.index(effect) for effect in effects
    ]


def with_works(program: Program, works: dict[tuple[str, int], Work]) -> Program:
    """The program with a work on every compute, by (name, stage); names that are not given keep none."""
    table: dict[Work, int] = {}
    num_stages = max(program.tables.num_stages, int(program.columns.stage.max(initial=0)) + 1)
    place = np.full((len(program.tables.effects), num_stages), -1, dtype=np.int64)
    for e, effect in enumerate(program.tables.effects):
        for stage in range(num_stages):
            work = works.get((effect.name, stage))
            if work is not None:
                place[e, stage] = table.setdefault(work, len(table))
    chosen = place[program.columns.effect, program.columns.stage] if len(program) else program.columns.work
    return program.with_tables(works=tuple(table)).with_columns(work=chosen)


def with_shares(program: Program, num_chunks: int) -> Program:
    """A work on every compute that costs its share of a full stage."""
    names = {effect.name for effect in program.tables.effects if effect.kind == Kind.COMPUTE}
    stages = range(program.tables.num_stages)
    return with_works(program, {(n, s): Work(n, share=1 / num_chunks) for n in names for s in stages})
