"""Whether exchanges of the core's names do what these stand for: reductions over exactly the copies, gathers, sums."""

from __future__ import annotations

import numpy as np

from meshwright.ir.core_vocabulary import ALONG_FIRST_AXIS, OPERATIONS
from meshwright.ir.layout import COPIED, MAPS, PARTIAL, SPLIT, layout_of, layouts_of, operation_of
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange
from meshwright.specs.error import ProgramError

NUM_NAMED = 4  # groups that a message names


def reduction_axes(program: Program, group: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Axes on which the copies of a group have different data, and the devices of its stages along the first axis."""
    row = program.tables.groups[group]
    axes = tuple(a for a in row.replicated if program.axis(a).size > 1)
    devices = {device for stage in row.stages for device in program.tables.devices_of_stage[stage]}
    return axes, tuple(sorted(devices))


def is_reduced(program: Program, group: int) -> bool:
    """Have the copies of a group different data?"""
    axes, devices = reduction_axes(program, group)
    return bool(axes) or len(devices) > 1


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
