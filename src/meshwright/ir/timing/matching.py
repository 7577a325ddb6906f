"""Which rows are the ends of one exchange: paired by the value they move, never by their place in a list."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.kernel.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Kind, Pattern
from meshwright.ir.value_space import (
    ValueSpace,
    num_microbatches,
    pattern_fields,
    pattern_tables,
    row_tables,
    value_codes,
    value_space,
)
from meshwright.specs.error import ProgramError

Ints = NDArray[Any]


def match(program: Program, space: ValueSpace | None = None) -> NDArray[np.int32]:
    """For every row the next end of its exchange, in a circle (itself: it is alone, or the others are collapsed). ``space``:
    its values, where they were numbered before.

    Raises:
        ProgramError: an end without the others, or an exchange row without a class, or a class on an axis that is not there.
    """
    next_end = np.arange(program.num_rows, dtype=np.int32)
    kinds = program.kinds
    is_exchange = (kinds == Kind.SEND) | (kinds == Kind.RECEIVE) | (kinds == Kind.COLLECTIVE)
    if not is_exchange.any():
        return next_end
    _check_classes(program, is_exchange)
    moved = moved_codes(program, space)
    _match_pairs(program, moved, next_end)
    _match_groups(program, moved, next_end)
    return next_end


def moved_codes(program: Program, space: ValueSpace | None = None) -> Ints:
    """Code of the value that each exchange row moves, as its effect says; -1 for all other rows."""
    space = space or value_space(program)
    c = program.columns
    _, _, fields, patterns = pattern_tables(program, space)
    flat = list(patterns)
    extra: list[Pattern] = []
    of_effect = np.full(max(1, len(program.tables.effects)), -1, dtype=np.int64)
    for e, effect in enumerate(program.tables.effects):
        if not effect.kind.is_exchange:
            continue
        pattern = effect.moves or (effect.writes if effect.kind == Kind.RECEIVE else effect.reads)[0]
        if pattern in flat:
            of_effect[e] = flat.index(pattern)
        else:
            of_effect[e] = len(flat) + len(extra)
            extra.append(pattern)
    if extra:
        more = [pattern_fields(program, space, p) for p in extra]
        fields = np.concatenate([fields, np.array(more).reshape(-1)])
    path_length, group_ptr, groups = row_tables(program)
    codes = np.full(program.num_rows, -1, dtype=np.int32)
    inputs = (
        c.effect, c.stage, c.hop, c.microbatch, c.part, of_effect, fields, path_length, group_ptr, groups,
        num_microbatches(program),
    )  # fmt: skip
    status = call(value_codes, program.num_rows, inputs, [codes])
    if status:
        view = program.row(status - 1)
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} moves a value that its stage does not have"
        )
    return codes


def _check_classes(program: Program, is_exchange: Ints) -> None:
    """Every exchange row has a class, and every class runs along axes of the program."""
    missing = np.flatnonzero(is_exchange & (program.columns.exchange < 0))
    if len(missing):
        view = program.row(int(missing[0]))
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} has no exchange class; say between whom it is"
        )
    for exchange in program.tables.exchanges:
        if not exchange.axes or min(exchange.ends or (0,)) < 0:
            raise ProgramError(
                f"{exchange} has no axis or a negative end; name the axis, and count ends from 0"
            )
        for name in exchange.axes:
            axis = program.axis(name)
            named = exchange.ends is not None and name == exchange.axes[0]
            if named and not axis.materialised:
                raise ProgramError(
                    f"{exchange} names coordinates along {name}, which is collapsed; expand it or use a shift"
                )
            if named and max(exchange.ends or (0,)) >= axis.size:
                raise ProgramError(f"{exchange} names a coordinate outside of {name}={axis.size}")


def _strides(program: Program) -> dict[str, tuple[int, int]]:
    """For every materialised axis: (stride between lists, size)."""
    result, stride = {}, 1
    for axis in reversed(program.list_axes):
        result[axis.name] = (stride, axis.size)
        stride *= axis.size
    return result


def peers(program: Program, kind: Kind, classes: Ints, lists: Ints) -> Ints:
    """List at the other end of point-to-point rows of these classes on these lists; -1: the list is no end of the class."""
    strides = _strides(program)
    table = np.array(
        [_row_of_class(exchange, strides, kind) for exchange in program.tables.exchanges], dtype=np.int64
    )
    result = np.empty(len(lists), dtype=np.int64)
    call(_find_peers, len(lists), (classes, lists, table.reshape(-1)), [result])
    return result


def _find_peers(classes: Any, lists: Any, table: Any, result: Any) -> int:
    """Kernel: the other end of every row, from its class's (stride, size, own coordinate, other coordinate, shift)."""
    for i in range(len(lists)):
        row = 5 * classes[i]
        stride, size, own = table[row], table[row + 1], table[row + 2]
        coordinate = lists[i] // stride % size
        if own < 0:
            result[i] = lists[i] + ((coordinate + table[row + 4]) % size - coordinate) * stride
        elif own == coordinate:
            result[i] = lists[i] + (table[row + 3] - coordinate) * stride
        else:
            result[i] = -1
    return 0


def _row_of_class(
    exchange: Exchange, strides: dict[str, tuple[int, int]], kind: Kind
) -> tuple[int, int, int, int, int]:
    """(stride, size, own coordinate or -1, other coordinate, shift) of a point-to-point class seen from one of its kinds."""
    stride, size = _ring_of(exchange, strides)
    if exchange.ends is None or exchange.axes[0] not in strides:
        return stride, size, -1, 0, exchange.shift if kind == Kind.SEND else -exchange.shift
    if len(exchange.ends) != 2:  # a group: nobody is an end of it
        return stride, size, size, 0, 0
    own, other = exchange.ends if kind == Kind.SEND else exchange.ends[::-1]
    return stride, size, own, other, 0


def _ring_of(exchange: Exchange, strides: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """(stride, size) of the lists around which a shift goes, the axes of which are numbered as one; along collapsed axes the
    other end is the list itself. Raises ProgramError where axes of one shift are not neighbours, or some are collapsed."""
    along = exchange.axes if exchange.shift else exchange.axes[:1]
    found = [strides[axis] for axis in along if axis in strides]
    if not found:
        return 1, 1
    is_one = all(outer[0] == own[0] * own[1] for outer, own in itertools.pairwise(found))
    if len(found) < len(along) or not is_one:
        raise ProgramError(
            f"a shift goes along {', '.join(along)} as one axis",
            allowed="neighbouring axes, outermost first, all of which are expanded, or none",
        )
    return found[-1][0], math.prod(size for _, size in found)


def _match_pairs(program: Program, moved: Ints, next_end: NDArray[np.int32]) -> None:
    """Join the n-th SEND of a value between two lists with the n-th RECEIVE of it."""
    ends = {}
    for kind in (Kind.SEND, Kind.RECEIVE):
        rows = np.flatnonzero(program.kinds == kind).astype(np.int32)
        classes = program.columns.exchange[rows]
        own = program.list_of_row[rows].astype(np.int64)
        other = peers(program, kind, classes, own)
        if len(rows) and other.min() < 0:
            row = int(rows[np.argmin(other)])
            view = program.row(row)
            raise ProgramError(
                f"device {view.device}, position {view.position}: {view.text} is no end of {view.exchange}\n"
                + grid(program, row)
            )
        source, target = (own, other) if kind == Kind.SEND else (other, own)
        key = source * program.num_lists + target
        key *= len(program.tables.exchanges)
        key += classes
        key *= int(moved.max()) + 1
        key += moved[rows]
        order = np.argsort(key, kind="stable")
        ends[kind] = (rows[order], key[order])
    (senders, sent), (receivers, received) = ends[Kind.SEND], ends[Kind.RECEIVE]
    if len(sent) != len(received) or (sent != received).any():
        _raise_unmatched(program, senders, sent, receivers, received)
    next_end[senders] = receivers
    next_end[receivers] = senders


def _raise_unmatched(program: Program, senders: Ints, sent: Ints, receivers: Ints, received: Ints) -> None:
    """Name the first end that has no partner."""
    for rows, keys, others, word in (
        (senders, sent, received, "RECEIVE"),
        (receivers, received, senders, "SEND"),
    ):
        other_keys = received if others is received else sent
        left = np.searchsorted(keys, keys, side="left")
        occurrence = np.arange(len(keys)) - left
        available = np.searchsorted(other_keys, keys, side="right") - np.searchsorted(
            other_keys, keys, side="left"
        )
        lone = np.flatnonzero(occurrence >= available)
        if len(lone):
            row = int(rows[lone].min())
            view = program.row(row)
            raise ProgramError(
                f"device {view.device}, position {view.position}: {view.text} has no {word} of the same value "
                f"at its other end ({view.exchange})\n" + grid(program, row)
            )
    raise AssertionError("unequal keys have a lone end")


def _match_groups(program: Program, moved: Ints, next_end: NDArray[np.int32]) -> None:
    """Join the rows of a collective: the n-th of every member, of the same class and value."""
    rows = np.flatnonzero(program.kinds == Kind.COLLECTIVE).astype(np.int32)
    if not len(rows):
        return
    lists, classes = program.list_of_row[rows].astype(np.int64), program.columns.exchange[rows]
    team = np.zeros(len(rows), dtype=np.int64)
    expected = np.ones(len(rows), dtype=np.int64)
    strides = _strides(program)
    for number, exchange in enumerate(program.tables.exchanges):
        chosen = np.flatnonzero(classes == number)
        base = lists[chosen].copy()
        for name in exchange.axes:
            if name not in strides:
                continue
            stride, size = strides[name]
            coordinate = base // stride % size
            base -= coordinate * stride
            members = (
                exchange.ends
                if exchange.ends is not None and name == exchange.axes[0]
                else tuple(range(size))
            )
            outside = ~np.isin(coordinate, members)
            if outside.any():
                view = program.row(int(rows[chosen[np.flatnonzero(outside)[0]]]))
                raise ProgramError(
                    f"device {view.device}, position {view.position}: {view.text} is no member of {exchange}"
                )
            expected[chosen] *= len(members)
        team[chosen] = base * len(program.tables.exchanges) + number
    key = team * (int(moved.max()) + 1) + moved[rows]
    order = np.lexsort((rows, lists, key))
    key, rows, lists, expected = key[order], rows[order], lists[order], expected[order]
    same = (key[1:] == key[:-1]) & (lists[1:] == lists[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    occurrence = np.arange(len(rows)) - np.repeat(starts, np.diff(np.concatenate([starts, [len(rows)]])))
    order = np.lexsort((rows, occurrence, key))
    key, rows, occurrence, expected = key[order], rows[order], occurrence[order], expected[order]
    starts = np.flatnonzero(
        np.concatenate([[True], (key[1:] != key[:-1]) | (occurrence[1:] != occurrence[:-1])])
    )
    counts = np.diff(np.concatenate([starts, [len(rows)]]))
    wrong = np.flatnonzero(counts != expected[starts])
    if len(wrong):
        view = program.row(int(rows[starts[wrong[0]]]))
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} has {int(counts[wrong[0]])} ends, "
            f"its group {view.exchange} has {int(expected[starts[wrong[0]]])} members\n"
            + grid(program, view.row)
        )
    following = np.arange(1, len(rows) + 1)
    following[starts + counts - 1] = starts
    next_end[rows] = rows[following]
