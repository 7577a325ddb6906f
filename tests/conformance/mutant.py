"""Faults of programs that plans are lowered to: rows left out, exchanges that do something else or run along other axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from random import Random

import numpy as np

from meshwright.ir import Kind, Program
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Exchange
from meshwright.specs.error import ProgramError

ALGORITHMS = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_reduce.two_level",
    "all_to_all",
    "send_receive",
)
Mutation = Callable[[Program], Program]  # of a program with as many rows as the one that it was made for


def dropped(rows: tuple[int, ...]) -> Mutation:
    """Without these rows."""

    def change(program: Program) -> Program:
        offsets = program.offsets - np.searchsorted(np.array(sorted(rows)), program.offsets)
        return program.reordered(np.delete(np.arange(program.num_rows), rows), offsets)

    return change


def exchanged(rows: tuple[int, ...], exchange: Exchange) -> Mutation:
    """With these rows in another class."""

    def change(program: Program) -> Program:
        classes = tuple(dict.fromkeys((*program.tables.exchanges, exchange)))
        column = program.columns.exchange.copy()
        column[list(rows)] = classes.index(exchange)
        return program.with_tables(exchanges=classes).with_columns(exchange=column)

    return change


def mutations(program: Program) -> Iterator[tuple[str, Mutation]]:
    """Every row left out; every exchange with another algorithm, at all of its ends; every axis of a collective left out, or
    one more; every message of a ring to another device."""
    for row in range(program.num_rows):
        yield f"without {program.text_of(row)} of {program.list_of_row[row]}", dropped((row,))
    for rows in _exchanges(program):
        view = program.row(rows[0])
        assert view.exchange is not None
        name = f"{program.text_of(rows[0])} at {len(rows)} ends"
        others = _other_algorithms(view.exchange), _other_axes(program, view.kind, view.exchange)
        for exchange in (*others[0], *others[1], *_other_shifts(program, view.exchange)):
            yield f"{name} as {exchange}", exchanged(rows, exchange)
    yield from _past_exchanges(program)
    for rows in _exchanges(program):
        if len(rows) > 1:
            yield f"without {program.text_of(rows[0])} at {len(rows)} ends", dropped(rows)


def read_past(effect: int, whole: str, part: str) -> Mutation:
    """With an effect that reads what an exchange took instead of what it made."""

    def change(program: Program) -> Program:
        effects = list(program.tables.effects)
        reads = tuple(p._replace(kind=part) if p.kind == whole else p for p in effects[effect].reads)
        effects[effect] = effects[effect]._replace(reads=tuple(dict.fromkeys(reads)))
        return program.with_tables(effects=tuple(effects))

    return change


def _past_exchanges(program: Program) -> Iterator[tuple[str, Mutation]]:
    """Every effect that reads what a collective made, with what that took."""
    effects = program.tables.effects
    used = set(np.unique(program.columns.effect).tolist())
    moved = {
        (taken.kind, made.kind)
        for e in used
        for taken, made in zip(effects[e].reads, effects[e].writes, strict=False)
        if effects[e].kind == Kind.COLLECTIVE and taken.kind != made.kind
    }
    for part, whole in sorted(moved):
        for e in sorted(used):
            if any(p.kind == whole for p in effects[e].reads):
                yield f"{effects[e].name} reads {part} for {whole}", read_past(e, whole, part)


def _exchanges(program: Program) -> Iterator[tuple[int, ...]]:
    """Rows of every exchange: all of its ends."""
    next_end = verify(program).wiring.next_end.tolist()
    seen: set[int] = set()
    for row in np.flatnonzero(program.columns.exchange >= 0).tolist():
        if row not in seen:
            ends = [row]
            while next_end[ends[-1]] != row:
                ends.append(next_end[ends[-1]])
            seen |= set(ends)
            yield tuple(ends)


def _other_algorithms(exchange: Exchange) -> Iterator[Exchange]:
    for algorithm in ALGORITHMS:
        if algorithm != exchange.algorithm:
            yield exchange._replace(algorithm=algorithm)


def _other_shifts(program: Program, exchange: Exchange) -> Iterator[Exchange]:
    """A message to any other device of a ring."""
    if exchange.shift:
        size = program.axis(exchange.axes[0]).size
        for more in range(1, size - 1):
            yield exchange._replace(shift=(exchange.shift + more - 1) % (size - 1) + 1)


def _other_axes(program: Program, kind: Kind, exchange: Exchange) -> Iterator[Exchange]:
    """Without one of its axes, or with one more of those along which there are several devices."""
    if kind != Kind.COLLECTIVE:
        return
    for axis in exchange.axes:
        if program.axis(axis).size > 1:
            yield exchange._replace(axes=tuple(a for a in exchange.axes if a != axis))
    for axis in program.axes:
        if axis.size > 1 and axis.name not in exchange.axes:
            yield exchange._replace(axes=(*exchange.axes, axis.name))


def pairs(
    rng: Random, program: Program, num: int, faults: Sequence[tuple[str, Mutation]] = ()
) -> Iterator[tuple[str, Mutation]]:
    """Two faults at once, drawn: what is left out comes last, so that rows keep their numbers until then."""
    singles = faults or list(mutations(program))
    for _ in range(num):
        (first, one), (second, two) = rng.sample(singles, 2)
        if first.startswith("without"):
            (first, one), (second, two) = (second, two), (first, one)
        if not first.startswith("without"):
            yield f"{first} and {second}", lambda p, one=one, two=two: two(one(p))
    rows = range(program.num_rows)
    some = rng.sample(list(combinations(rows, 2)), min(num, len(rows)))
    for both in some:
        yield f"without {' and '.join(map(program.text_of, both))}", dropped(both)


def accepted(program: Program, faults: Iterator[tuple[str, Mutation]]) -> tuple[int, list[str]]:
    """How many faults there are, and those that `verify` accepts although the outputs are made of something else."""
    expected, num, found = outputs(program), 0, []
    for name, change in faults:
        num += 1
        try:
            mutant = change(program)
            verify(mutant)
        except ProgramError:  # of the family; anything else is a fault of ours
            continue
        if outputs(mutant) != expected:
            found.append(name)
    return num, found
