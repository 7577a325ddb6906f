"""A second judge, independent of replay and verify: what the outputs of one iteration are made of, as symbols."""

from __future__ import annotations

from typing import Any

from meshwright.ir.dependencies import ValueSpace, codes_of, effect_of, value_space
from meshwright.ir.matching import match
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.specs.error import DeadlockError

# ("input", code) | (name, stage, hop, microbatch, part, contents read) | (row's content, place of the write)
# | ("sum", contents...) | (name of a collective, contents of all ends)
Symbol = Any


def outputs(program: Program) -> dict[tuple[int, int], int]:
    """Content of every carried or accumulated value that a device holds at the end, by (list, value code).

    A content is a number; equal contents of two programs have equal numbers within one process. Within a device the rows
    run in list order; an exchange holds up nobody but who reads what it brings.

    Raises:
        DeadlockError: a row waits for something that never comes.
    """
    judge = _Judge(program)
    judge.run()
    kinds, space = program.tables.value_kinds, judge.space
    wanted = {k for k, kind in enumerate(kinds) if kind.carried or kind.accumulates}
    return {
        (device, code): judge.content(device, code) or 0
        for device, held in enumerate(judge.held)
        for code in held
        if int(space.kind_of(code)) in wanted
    }


class _Judge:
    """Contents while the rows run: a value is a number, or the exchange row that will bring it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.space: ValueSpace = value_space(program)
        self.next_end = match(program).tolist()
        self.held: list[dict[int, int | tuple[int, int]]] = [{} for _ in range(program.num_lists)]
        self.sent: dict[int, list[int]] = {}

    def run(self) -> None:
        """All rows, every device as far as it can go, until nothing moves."""
        program = self.program
        where = program.offsets[:-1].tolist()
        moved = True
        while moved:
            moved = False
            for device in range(program.num_lists):
                while where[device] < program.offsets[device + 1] and self._row(device, where[device]):
                    where[device] += 1
                    moved = True
        if any(place < program.offsets[d + 1] for d, place in enumerate(where)):
            raise DeadlockError("a row waits for a value that never comes")

    def content(self, device: int, code: int) -> int | None:
        """Content of a value now; None while the exchange that brings it has not all its ends."""
        value = self.held[device].get(code)
        if value is None:
            return _number(("input", code))
        return self._brought(*value) if isinstance(value, tuple) else value

    def _brought(self, row: int, place: int) -> int | None:
        ends = self._ends(row)
        if self.program.kinds[row] == Kind.RECEIVE:
            return self.sent[ends[1]][place] if ends[1] in self.sent else None
        if any(e not in self.sent for e in ends):
            return None
        name = effect_of(self.program, row).name
        return _number((_number((name, *sorted(tuple(self.sent[e]) for e in ends))), place))

    def _ends(self, row: int) -> list[int]:
        ends = [row]
        while self.next_end[ends[-1]] != row:
            ends.append(self.next_end[ends[-1]])
        return ends

    def _row(self, device: int, row: int) -> bool:
        """Run one row; False where something that it reads is not there yet."""
        effect = effect_of(self.program, row)
        reads = [self.content(device, code) for code in codes_of(self.program, row, effect.reads, self.space)]
        if any(content is None for content in reads):
            return False
        known = [content for content in reads if content is not None]
        if effect.kind in (Kind.SEND, Kind.COLLECTIVE):
            self.sent[row] = known
        view = self.program.row(row)
        made = _number((view.name, view.stage, view.hop, view.microbatch, view.part, *known))
        for place, code in enumerate(codes_of(self.program, row, effect.writes, self.space)):
            if effect.kind in (Kind.RECEIVE, Kind.COLLECTIVE):
                self.held[device][code] = (row, place)
            else:
                self._write(device, code, _number((made, place)))
        return True

    def _write(self, device: int, code: int, value: int) -> None:
        if (
            self.program.tables.value_kinds[int(self.space.kind_of(code))].accumulates
            and code in self.held[device]
        ):
            value = _number(("sum", *sorted([*_terms(self.content(device, code) or 0), value])))
        self.held[device][code] = value


_NUMBERS: dict[Symbol, int] = {}
_SYMBOLS: list[Symbol] = []


def _number(symbol: Symbol) -> int:
    """One number a symbol, so that equal contents are equal numbers and nothing is nested."""
    number = _NUMBERS.setdefault(symbol, len(_NUMBERS) + 1)
    if number > len(_SYMBOLS):
        _SYMBOLS.append(symbol)
    return number


def _terms(number: int) -> list[int]:
    """The terms of a sum, or the content itself."""
    symbol = _SYMBOLS[number - 1]
    return list(symbol[1:]) if symbol[0] == "sum" else [number]
