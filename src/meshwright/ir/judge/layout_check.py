"""Whether what is read lies along the axes as its reader needs it, and exchanges make of layouts what they say.

What a pattern does not name is not checked. A write that names no layout along an axis made what is copied along it. What
an iteration reads and none writes (frozen parameters) is what its readers take it for, and all have to take it for the same.
Along an axis of one device every layout is every other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.kernel.kernel import call
from meshwright.ir.layout import (
    COPIED,
    MAPS,
    SEND,
    fits,
    layouts_by_group,
    layouts_of,
    maps,
    operation_of,
)
from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Exchange, Kind, Pattern
from meshwright.ir.timing.wiring import Wiring
from meshwright.ir.value_space import num_microbatches, pattern_tables, row_tables
from meshwright.specs.error import ProgramError

Ints = NDArray[Any]


def check_layouts(wiring: Wiring) -> None:
    """Every read finds its layout, contributions to a sum have the same one, and exchanges map what they say.

    Raises:
        ProgramError: with the row, the value, what it has and what is needed.
    """
    program = wiring.program
    layouts = {p.layout for effect in program.tables.effects for p in (*effect.reads, *effect.writes)}
    known = {axis.name for axis in program.axes if axis.size > 1}
    if any(known & one.keys() for layout in layouts for one in layouts_by_group(layout)):
        _check_reads(wiring, known)
        _check_exchanges(wiring, known)


class _Met(NamedTuple):
    """One more than the first row where a pattern met another, by (earlier, later): a read what was written, a read what
    another one took for given, a contribution the one before it."""

    read: Ints
    taken: Ints
    added: Ints


def _check_reads(wiring: Wiring, axes: set[str]) -> None:
    """Every pair of patterns that meet in a value: one check a pair, however many rows there are."""
    program = wiring.program
    read_ptr, write_start, fields, patterns = pattern_tables(program, wiring.deps.space)
    kinds = {p.kind for p in patterns if p.layout}
    said = [_said(p) if p.kind in kinds else [] for p in patterns]
    # numbers of what is said: a pattern's, or one more for each further group that it says something of
    first = np.concatenate([[0], np.cumsum([len(each) for each in said])]).astype(np.int64)
    owner = np.repeat(np.arange(len(patterns)), np.diff(first))
    met = _meetings(wiring, (read_ptr, write_start, fields), first)
    says = [{axis: how for axis, how in one.items() if axis in axes} for each in said for one in each]
    for before, behind in np.argwhere(met.read).tolist():
        for axis, needs in says[behind].items():
            has = says[before].get(axis, COPIED)
            if not fits(has, needs):
                made = f"{_owner(program, int(owner[before]), read_ptr)} writes it {axis}:{has}"
                _refuse(
                    program, int(met.read[before, behind]) - 1, patterns[owner[behind]], axis, needs, made
                )
    for before, behind in np.argwhere(met.taken).tolist():
        for axis, needs in says[behind].items():
            has = says[before].get(axis, needs)
            if not (fits(has, needs) or fits(needs, has)):
                made = f"nothing writes it, and {_owner(program, int(owner[before]), read_ptr)} takes it for {axis}:{has}"
                _refuse(
                    program, int(met.taken[before, behind]) - 1, patterns[owner[behind]], axis, needs, made
                )
    for before, behind in np.argwhere(met.added).tolist():
        for axis in sorted(says[before].keys() | says[behind].keys()):
            has, adds = says[before].get(axis, COPIED), says[behind].get(axis, COPIED)
            if has != adds:
                made = f"{_owner(program, int(owner[before]), read_ptr)} added to it {axis}:{has}"
                _refuse(
                    program,
                    int(met.added[before, behind]) - 1,
                    patterns[owner[behind]],
                    axis,
                    adds,
                    made,
                    "adds to",
                )


def _owner(program: Program, pattern: int, read_ptr: Ints) -> str:
    """Name of the effect that has a pattern of the flat table."""
    return program.tables.effects[int(np.searchsorted(read_ptr, pattern, side="right")) - 1].name


def _refuse(
    program: Program, row: int, pattern: Pattern, axis: str, needs: str, made: str, does: str = "reads"
) -> None:
    view = program.row(row)
    raise ProgramError(
        f"device {view.device}, position {view.position}: {view.text} {does} a {pattern.kind} as {axis}:{needs}, but "
        f"{made}; put the exchange between them that makes the one of the other\n" + grid(program, row)
    )


def _said(p: Pattern) -> list[dict[str, str]]:
    """Layouts of a pattern: one, or one for each group."""
    return layouts_by_group(p.layout) if p.index == "groups" else [layouts_of(p.layout)]


def _meetings(wiring: Wiring, tables: tuple[Ints, Ints, Ints], first: Ints) -> _Met:
    """Which patterns meet in a value of a kind of which anything is said, found in one walk over all rows."""
    program, c, space = wiring.program, wiring.program.columns, wiring.deps.space
    path_length, group_ptr, groups = row_tables(program)
    chosen, num = (np.diff(first) > 0).astype(np.int8), int(first[-1])
    inputs = (
        program.offsets, c.effect, c.stage, c.hop, c.microbatch, c.part, *tables, chosen, first, path_length, group_ptr,
        groups, num_microbatches(program), num,
    )  # fmt: skip
    state = [np.zeros(space.size, dtype=np.int32) for _ in range(6)]
    met = [np.zeros(num * num, dtype=np.int64) for _ in range(3)]
    wrong = call(_meet, program.num_rows, inputs, [*state, *met])
    if wrong:
        view = program.row(wrong - 1)
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} says a layout for each of several groups, and its "
            f"stage has {len(program.tables.groups_of_stage[view.stage])}; say one for all, or one for each of them"
        )
    return _Met(*(each.reshape(num, num) for each in met))


def _meet(
    offsets: Any, effects: Any, stages: Any, hops: Any, microbatches: Any, parts: Any, read_ptr: Any, write_start: Any,
    fields: Any, chosen: Any, first: Any, path_length: Any, group_ptr: Any, groups: Any, num_microbatches: int,
    num: int, final: Any, final_list: Any, last: Any, last_list: Any, taken: Any, taken_list: Any,
    met_read: Any, met_taken: Any, met_added: Any,
) -> int:  # fmt: skip
    """Kernel: two passes over a list, as those that derive dependencies: who writes a value last, then who meets whom.

    Every index is in range: the program's dependencies have been derived. One more than the row, where a pattern says
    layouts of other groups than its stage has.
    """
    for d in range(len(offsets) - 1):
        for turn in range(2):
            for i in range(offsets[d], offsets[d + 1]):
                e = effects[i]
                start = read_ptr[e] if turn == 1 else write_start[e]
                for p in range(start, read_ptr[e + 1]):
                    if chosen[p] == 0:
                        continue
                    when, last_hop = fields[10 * p + 7], path_length[microbatches[i]] - 1
                    if (when == 1 and hops[i] == 0) or (when == 2 and hops[i] == last_hop):
                        continue
                    if (when == 3 and hops[i] != 0) or (when == 4 and hops[i] != last_hop):
                        continue
                    mode, flags = fields[10 * p + 2], fields[10 * p + 8]
                    low, high = 0, 1
                    if mode == 2:
                        low, high = group_ptr[stages[i]], group_ptr[stages[i] + 1]
                    elif mode == 3:
                        low = group_ptr[stages[i]] + parts[i]
                        high = low + 1
                    elif mode == 5:
                        low = group_ptr[stages[i]] + fields[10 * p + 3]
                        high = low + 1
                    steps, part = fields[10 * p + 4], fields[10 * p + 5]
                    if steps != 0:
                        part += parts[i] // steps if steps > 0 else -parts[i] * steps
                    if first[p + 1] - first[p] > 1 and first[p + 1] - first[p] != high - low:
                        return i + 1
                    for place in range(low, high):
                        q = first[p] + (place - low if first[p + 1] - first[p] > 1 else 0)
                        index = 0
                        if mode == 0:
                            index = hops[i] + fields[10 * p + 3]
                        elif mode == 1:
                            index = stages[i] + fields[10 * p + 3]
                        elif mode != 4:
                            index = groups[place]
                        if flags & 1:
                            index = index * num_microbatches + microbatches[i]
                        for own_part in range(0 if flags & 8 else part, part + 1):
                            code = fields[10 * p] + index * fields[10 * p + 9] + own_part
                            if turn == 0:
                                final[code] = q
                                final_list[code] = d + 1
                            elif p >= write_start[e]:
                                if (
                                    flags & 4
                                    and last_list[code] == d + 1
                                    and met_added[last[code] * num + q] == 0
                                ):
                                    met_added[last[code] * num + q] = i + 1
                                # a reader of the same row took the version before: its own becomes the last behind it
                                last[code] = q
                                last_list[code] = d + 1
                            else:
                                before = -1
                                if fields[10 * p + 6] == 0 and last_list[code] == d + 1:
                                    before = last[code]
                                elif final_list[code] == d + 1:
                                    before = final[code]
                                if before >= 0:
                                    if met_read[before * num + q] == 0:
                                        met_read[before * num + q] = i + 1
                                elif taken_list[code] != d + 1:
                                    taken[code] = q
                                    taken_list[code] = d + 1
                                elif met_taken[taken[code] * num + q] == 0:
                                    met_taken[taken[code] * num + q] = i + 1
    return 0


def _check_exchanges(wiring: Wiring, axes: set[str]) -> None:
    """Every class of exchanges with the effects at its ends: reads and writes at the same place are one value moved."""
    program, c = wiring.program, wiring.program.columns
    has = np.array([_has_layout(effect) for effect in program.tables.effects])[c.effect]
    moves = np.flatnonzero((program.kinds == Kind.SEND) | (program.kinds == Kind.COLLECTIVE))
    other = np.where(program.kinds[moves] == Kind.SEND, wiring.next_end[moves], moves)
    chosen = has[moves] | has[other]
    moves, other = moves[chosen], other[chosen]
    table = np.stack([c.effect[moves], c.effect[other], c.exchange[moves]], axis=1)
    distinct, first = np.unique(table, axis=0, return_index=True)
    for (taker, maker, number), at in zip(distinct.tolist(), moves[first].tolist(), strict=True):
        effects = program.tables.effects
        exchange = program.tables.exchanges[number]
        for taken, made in zip(effects[taker].reads, effects[maker].writes, strict=False):
            _check_map(program, at, exchange, (taken, made), axes)


def _has_layout(effect: Effect) -> bool:
    return any(p.layout for p in (*effect.reads, *effect.writes))


def _check_map(
    program: Program, row: int, exchange: Exchange, moved: tuple[Pattern, Pattern], axes: set[str]
) -> None:
    """What is taken becomes what is made along the exchange's axes by its operation, along others it stays; who says how a
    value lies along one of these axes says it along all of them."""
    taken, made = (layouts_of(pattern.layout) for pattern in moved)
    said = (taken.keys() | made.keys()) & axes
    unsaid = (axes & set(exchange.axes)) - said
    if unsaid and said & set(exchange.axes):
        view = program.row(row)
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} exchanges a {moved[0].kind} along "
            f"{', '.join(exchange.axes)}, and its layout {moved[0].layout!r} says nothing along {', '.join(sorted(unsaid))}; "
            f"leave these axes out, or say how it lies along them\n" + grid(program, row)
        )
    is_message = program.tables.effects[program.columns.effect[row]].kind == Kind.SEND
    operation = operation_of(exchange.algorithm, is_message)
    for axis in sorted(said):
        before, behind = taken.get(axis, COPIED), made.get(axis, COPIED)
        is_along = axis in (exchange.axes[:1] if is_message else exchange.axes)
        around = exchange.axes if is_message else (axis,)
        turn = exchange.shift, math.prod(program.axis(each).size for each in around)
        if not (maps(operation, before, behind, turn) if is_along else before == behind):
            view = program.row(row)
            allowed = _maps_text(operation, axis, turn) if is_along else f"{axis}:{before} -> {axis}:{before}"
            raise ProgramError(
                f"device {view.device}, position {view.position}: {view.text} takes a {moved[0].kind} {axis}:{before} and "
                f"makes a {moved[1].kind} {axis}:{behind}, but its exchange {exchange.algorithm or 'by message'} along "
                f"{', '.join(exchange.axes)} maps {allowed}\n" + grid(program, row)
            )


def _maps_text(operation: str, axis: str, turn: tuple[int, int]) -> str:
    """What an operation maps, in the words of layouts."""
    behind = {"all_to_all": ("(i)", "(j)"), SEND: ("", f"+{turn[0] % turn[1]}")}.get(operation, ("", ""))
    return " or ".join(
        f"{axis}:{before}{behind[0]} -> {axis}:{after}{behind[1]}" for before, after in MAPS[operation]
    )
