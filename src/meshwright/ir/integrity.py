"""Whether every number of a program's columns and tables points to something: what all that compiles programs relies on."""

from __future__ import annotations

import numpy as np

from meshwright.ir.layout import layouts_by_group, layouts_of
from meshwright.ir.program import Program
from meshwright.ir.table import (
    DUTY_PLACES,
    INDEX_MODES,
    PART_MODES,
    VALUE_INDICES,
    WHEN_MODES,
    Duty,
    Effect,
    Kind,
)
from meshwright.specs.error import ProgramError


def check_tables(program: Program) -> None:
    """Every entry of the tables is one of those that there are.

    Raises:
        ProgramError: a path that leaves the devices, a microbatch without a path, a word or a size that nobody knows.
    """
    t = program.tables
    num_devices = program.axes[0].size if program.axes else 1
    for hop in {hop for path in t.paths for hop in path}:
        if hop.stage < 0 or not 0 <= hop.device < num_devices:
            raise ProgramError(
                f"a path goes to {hop.stage}@{hop.device}; stages count from 0, devices from 0 to {num_devices - 1}"
            )
    for path in {microbatch.path for microbatch in t.microbatches}:
        if not 0 <= path < len(t.paths):
            raise ProgramError(f"a microbatch takes path {path}; there are {len(t.paths)}, numbered from 0")
    for kind in t.value_kinds:
        _check_word(kind.index, VALUE_INDICES, f"value kind {kind.name} has the index")
    for duty in t.duties:
        _check_word(duty.per, DUTY_PLACES, f"duty {duty.name} is due per")
    _check_shares(t.duties)
    for group in t.groups:
        if min(group.stages, default=0) < 0:
            raise ProgramError(f"group {group.name} names stages {group.stages}; they count from 0")
        for axis in (*group.replicated, *group.partial, *group.scattered):
            program.axis(axis)
    for exchange in t.exchanges:
        if not exchange.axes or (exchange.ends is not None and min(exchange.ends, default=-1) < 0):
            raise ProgramError(
                f"{exchange} names no axis, no ends or a negative one; ends count from 0 along an axis"
            )
    sizes = [size.name for size in t.sizes]
    named = {row.size for row in t.exchanges} | {row.size for row in t.value_bytes}
    for size in named - {""}:
        _check_word(size, sizes, "an exchange or value has the run-time size")
    for effect in t.effects:
        _check_effect(effect)
    for layout, index in {(p.layout, p.index) for e in t.effects for p in (*e.reads, *e.writes) if p.layout}:
        for layouts in layouts_by_group(layout) if index == "groups" else [layouts_of(layout)]:
            for axis in layouts:
                program.axis(axis)


def _check_shares(duties: tuple[Duty, ...]) -> None:
    """Duties of one name share the stages among them, and are all due per the same."""
    places: dict[str, str] = {}
    stages: dict[str, set[int]] = {}
    for duty in duties:
        claimed = stages.setdefault(duty.name, set())
        is_alone = duty.name not in places
        if min(duty.stages, default=0) < 0:
            raise ProgramError(f"duty {duty.name} is due on stages {duty.stages}; they count from 0")
        if not is_alone and (not claimed or not duty.stages or claimed & set(duty.stages)):
            raise ProgramError(
                f"{duty.name} has two duties on one stage; give each the stages on which it is due, none twice"
            )
        if places.setdefault(duty.name, duty.per) != duty.per:
            raise ProgramError(f"{duty.name} is due per {places[duty.name]} and per {duty.per}; choose one")
        claimed |= set(duty.stages)


def _check_effect(effect: Effect) -> None:
    moved = (effect.moves,) if effect.moves is not None else ()
    for pattern in (*effect.reads, *effect.writes, *moved):
        _check_word(pattern.index, INDEX_MODES, f"{effect.name} names a {pattern.kind} by")
        _check_word(pattern.part, PART_MODES, f"{effect.name} names a {pattern.kind} of part")
        _check_word(pattern.when, WHEN_MODES, f"{effect.name} names a {pattern.kind} when")
        if pattern.steps < 1:
            raise ProgramError(f"{effect.name} names a relay of {pattern.steps} steps; it has at least one")
        if pattern.age < 0:
            raise ProgramError(
                f"{effect.name} reads a {pattern.kind} of age {pattern.age}; ages count from 0"
            )
    if effect.kind.is_exchange and not (
        moved or (effect.writes if effect.kind == Kind.RECEIVE else effect.reads)
    ):
        raise ProgramError(
            f"{effect.name} is a {effect.kind.name} that moves nothing; let it read or write what it moves"
        )


def _check_word(word: str, known: tuple[str, ...] | list[str], what: str) -> None:
    if word not in known:
        raise ProgramError(
            f"{what} {word!r}, which is none of {', '.join(known) or 'the table, which is empty'}"
        )


def check_columns(program: Program) -> None:
    """Every number of the columns points into its table.

    Raises:
        ProgramError: one does not, or `after` names a row that does not stand earlier in the same list.
    """
    t, c = program.tables, program.columns
    sizes = {
        "effect": len(t.effects),
        "stream": len(t.streams),
        "work": len(t.works),
        "exchange": len(t.exchanges),
    }
    sizes["microbatch"] = len(t.microbatches) or 1 << 30
    for name, size in sizes.items():
        values = getattr(c, name)
        low = -1 if name in ("work", "exchange") else 0
        wrong = np.flatnonzero((values < low) | (values >= size))
        if len(wrong):
            row = int(wrong[0])
            raise ProgramError(
                f"row {row}: {name} {int(values[row])} is not in its table, which has {size} entries; "
                f"what rows use must be in the tables"
            )
    for name in ("stage", "hop", "part", "batch"):
        if len(c) and int(getattr(c, name).min()) < 0:
            raise ProgramError(f"the column {name} has a negative entry; it counts from 0")
    if len(program.after):
        row, earlier = program.after.T
        is_legal = (earlier >= 0) & (earlier < row) & (row < program.num_rows)
        if not is_legal.all() or (program.list_of_row[row] != program.list_of_row[earlier]).any():
            raise ProgramError(
                "`after` names a row that does not stand earlier in the same list; only earlier rows can be waited for"
            )
