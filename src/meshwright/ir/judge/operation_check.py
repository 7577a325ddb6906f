"""Whether exchanges of the core's names do what these stand for: reductions over exactly the copies, gathers, sums."""

from __future__ import annotations

import numpy as np

from meshwright.ir.core_vocabulary import ALONG_FIRST_AXIS, OPERATIONS, SCATTER_GRAD, SUM_GRAD
from meshwright.ir.layout import COPIED, MAPS, PARTIAL, SPLIT, layout_of, layouts_of, operation_of
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange
from meshwright.specs.error import ProgramError

NUM_NAMED = 4  # groups that a message names


def reduction_axes(program: Program, group: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Axes on which the copies of a group have different data, which have not been scattered along them already, and the
    devices of its stages along the first axis."""
    row = program.tables.groups[group]
    axes = tuple(a for a in row.replicated if program.axis(a).size > 1 and a not in row.scattered)
    devices = {device for stage in row.stages for device in program.tables.devices_of_stage[stage]}
    return axes, tuple(sorted(devices))


def is_reduced(program: Program, group: int) -> bool:
    """Have the copies of a group different data?"""
    axes, devices = reduction_axes(program, group)
    return bool(axes) or len(devices) > 1


def scattered_axes(program: Program, group: int) -> tuple[str, ...]:
    """Axes along which the gradients of every microbatch are scattered."""
    return tuple(a for a in program.tables.groups[group].scattered if program.axis(a).size > 1)


def sum_axes(program: Program, group: int) -> tuple[str, ...]:
    """Axes along which devices have terms of some of a group's gradients."""
    return tuple(a for a in program.tables.groups[group].partial if program.axis(a).size > 1)


def is_due(program: Program, name: str, group: int) -> bool:
    """Has a group something of what is due once a group: its copies' data, or terms of its gradients?"""
    return bool(sum_axes(program, group)) if name == SUM_GRAD.name else is_reduced(program, group)


def check_sums(program: Program) -> None:
    """What sums terms of a group's gradients covers exactly the axes along which devices have these; a program that steps
    parameters sums all of them."""
    t, c = program.tables, program.columns
    duties = {duty.name for duty in t.duties}
    partial = [group.name for g, group in enumerate(t.groups) if sum_axes(program, g)]
    if "STEP" in duties and SUM_GRAD.name not in duties and partial:
        raise ProgramError(
            f"the program has STEP, and devices have terms of the gradients of {', '.join(partial[:NUM_NAMED])}, but nothing "
            f"sums them; add {SUM_GRAD.name} behind the last contribution to each"
        )
    rows = np.flatnonzero(np.array([effect.name == SUM_GRAD.name for effect in t.effects])[c.effect])
    table = np.stack([c.stage[rows], c.part[rows], c.exchange[rows]], axis=1)
    for stage, part, number in np.unique(table, axis=0).tolist():
        group, exchange = t.groups_of_stage[stage][part], t.exchanges[number]
        wanted = sum_axes(program, group)
        if set(exchange.axes) != set(wanted) or exchange.ends is not None:
            raise ProgramError(
                f"SUM_GRAD of {t.groups[group].name} runs along {exchange.axes} {exchange.ends or ''}, but terms of its "
                f"gradients lie along {wanted}; sum over exactly those"
            )


def check_scatters(program: Program) -> None:
    """What scatters the gradients of a microbatch covers exactly the axes along which a group's are, and does so once."""
    t, c = program.tables, program.columns
    rows = np.flatnonzero(np.array([effect.name == SCATTER_GRAD.name for effect in t.effects])[c.effect])
    first = np.cumsum([0, *(len(own) for own in t.groups_of_stage)])
    group = np.array([g for own in t.groups_of_stage for g in own] or [0])[
        first[c.stage[rows]] + c.part[rows]
    ]
    for g, number in np.unique(np.stack([group, c.exchange[rows]], axis=1), axis=0).tolist():
        exchange, wanted = t.exchanges[number], scattered_axes(program, g)
        if set(exchange.axes) != set(wanted) or exchange.ends is not None:
            raise ProgramError(
                f"SCATTER_GRAD of {t.groups[g].name} runs along {exchange.axes} {exchange.ends or ''}, but its gradients are "
                f"scattered along {wanted}; scatter along exactly those"
            )
    table = np.stack([program.list_of_row[rows], group, c.microbatch[rows]], axis=1)
    distinct, counts = np.unique(table, axis=0, return_counts=True)
    for device, g, microbatch in distinct[counts > 1].tolist():
        raise ProgramError(
            f"device {device} scatters the gradients of {t.groups[g].name} of microbatch {microbatch} twice"
        )


def check_reductions(program: Program) -> None:
    """The group of a reduction covers exactly the axes on which the parameter is a copy and the data differ; a program
    that steps parameters reduces every group that has copies."""
    t, c = program.tables, program.columns
    duties = {duty.name for duty in t.duties}
    copied = [group.name for g, group in enumerate(t.groups) if is_reduced(program, g)]
    if "STEP" in duties and "REDUCE_GRAD" not in duties and copied:
        raise ProgramError(
            f"the program has STEP, and copies of {', '.join(copied[:NUM_NAMED])}, but nothing reduces their gradients; "
            f"add REDUCE_GRAD behind the last contribution to each"
        )
    rows = np.flatnonzero(
        np.isin(c.effect, [e for e, effect in enumerate(t.effects) if effect.name == "REDUCE_GRAD"])
    )
    table = np.stack([c.stage[rows], c.part[rows], c.exchange[rows], c.effect[rows]], axis=1)
    for stage, part, number, effect in np.unique(table, axis=0).tolist():
        is_scattered = any(_is_split(p.layout) for p in t.effects[effect].writes)
        group = t.groups_of_stage[stage][part]
        axes, devices = reduction_axes(program, group)
        exchange = t.exchanges[number]
        wanted = axes if len(devices) < 2 else (program.axes[0].name, *axes)
        ends = None if len(devices) < 2 else devices
        if set(exchange.axes) != set(wanted) or (
            exchange.ends != ends and ends != tuple(range(program.axes[0].size))
        ):
            raise ProgramError(
                f"REDUCE_GRAD of {t.groups[group].name} runs along {exchange.axes} {exchange.ends or ''}, but its copies "
                f"stand along {wanted} {ends or ''}; reduce over exactly those"
            )
        _check_sum(t.groups[group].name, exchange, is_scattered, len(devices))


def _is_split(text: str) -> bool:
    """Is what lies so split along any axis?"""
    return any(layout_of(how).kind == SPLIT for how in layouts_of(text).values())


def _check_sum(group: str, exchange: Exchange, is_scattered: bool, num_devices: int) -> None:
    """A reduction sums, and leaves shards of the sum only where the program says so, with layouts (`check_layouts`)."""
    operation = operation_of(exchange.algorithm) if exchange.algorithm else "all_reduce"
    made = [behind for before, behind in MAPS[operation] if before == PARTIAL]
    if not made or (num_devices > 1 and COPIED not in made):
        raise ProgramError(
            f"REDUCE_GRAD of {group} has the algorithm {exchange.algorithm}, which does not sum for all of its copies"
        )
    if not is_scattered and COPIED not in made:
        raise ProgramError(
            f"REDUCE_GRAD of {group} has the algorithm {exchange.algorithm} and leaves each device a shard of the sum, but "
            f"nothing says that it is one; give what it reads and writes their layouts along {', '.join(exchange.axes)}"
        )


def check_operations(program: Program) -> None:
    """Exchanges of the core's names do what these stand for, the vocabulary's along the pipeline."""
    t, c = program.tables, program.columns
    known = [e for e, effect in enumerate(t.effects) if effect.name in OPERATIONS]
    if not known:
        return
    rows = np.flatnonzero(np.isin(np.arange(len(t.effects)), known)[c.effect])
    table = np.stack([c.effect[rows], c.exchange[rows]], axis=1)
    distinct, first = np.unique(table, axis=0, return_index=True)
    for (effect, number), at in zip(distinct.tolist(), rows[first].tolist(), strict=True):
        name, exchange = t.effects[effect].name, t.exchanges[number]
        is_other = bool(exchange.algorithm) and operation_of(exchange.algorithm) != OPERATIONS[name]
        if is_other or (name in ALONG_FIRST_AXIS and exchange.axes != (program.axes[0].name,)):
            view = program.row(at)
            along = f" along {program.axes[0].name}" if name in ALONG_FIRST_AXIS else ""
            raise ProgramError(
                f"device {view.device}, position {view.position}: {view.text} has the algorithm {exchange.algorithm} along "
                f"{', '.join(exchange.axes)}; it is an {OPERATIONS[name]}{along}"
            )
