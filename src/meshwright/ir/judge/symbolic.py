"""A second judge, independent of replay and verify: what the outputs of one iteration are made of, as symbols."""

from __future__ import annotations

import math
from typing import Any

from meshwright.ir.layout import MAPS, PARTIAL, layout_of, layouts_of, operation_of
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.matching import match
from meshwright.ir.value_space import ValueSpace, codes_of, effect_of, value_space
from meshwright.specs.error import DeadlockError

# ("input", code, age) | (name, stage, hop, microbatch, part, contents read) | (row's content, place of the write)
# | ("sum", contents...) | (name of a collective, (operation, axes), contents of all ends)
Symbol = Any
FORWARDS = ("F", "R")  # a recompute makes what the forward made, with the same draws


def outputs(program: Program) -> dict[tuple[int, int], int]:
    """Content of every carried or accumulated value that a device holds at the end, by (list, value code).

    A content is a number; equal contents of two programs have equal numbers within one process. What a read takes is
    decided by the order of the list; when a row runs only by what it needs, so streams, hosts and rings play no part.

    Raises:
        DeadlockError: a value is made, through exchanges, from itself.
    """
    judge = _Judge(program)
    kinds, space = program.tables.value_kinds, judge.space
    wanted = {k for k, kind in enumerate(kinds) if kind.carried or kind.accumulates}
    return {
        (device, code): judge.evaluate(held[code])
        for device, held in enumerate(judge.held)
        for code in held
        if int(space.kind_of(code)) in wanted
    }


class _Judge:
    """Nodes of a graph of contents, one a version, bound to what they read in list order, then evaluated."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.space: ValueSpace = value_space(program)
        self.next_end = match(program, self.space).tolist()
        self.nodes: list[tuple[Any, ...]] = []
        self.reads: list[list[int]] = []
        self.known: dict[int, int] = {}
        self.held: list[dict[int, int]] = [{} for _ in range(program.num_lists)]
        for row in range(program.num_rows):
            self._bind(row, self.held[int(program.list_of_row[row])])

    def _node(self, *node: Any) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _bind(self, row: int, held: dict[int, int]) -> None:
        """Note what the row reads, then what its list holds behind it."""
        effect = effect_of(self.program, row)
        reads = []
        for pattern in effect.reads:
            for code in codes_of(self.program, row, (pattern,), self.space):
                old = pattern.age > 0 or code not in held
                reads.append(self._node("input", code, pattern.age) if old else held[code])
        self.reads.append(reads)
        for place, code in enumerate(codes_of(self.program, row, effect.writes, self.space)):
            kind = self.program.tables.value_kinds[int(self.space.kind_of(code))]
            node = self._node("made", row, kind.name if effect.name in FORWARDS else place)
            accumulates = kind.accumulates
            held[code] = self._node("sum", held[code], node) if accumulates and code in held else node

    def _sources(self, node: int) -> list[int]:
        """The nodes that a node is made of."""
        kind, row, place = self.nodes[node]
        if kind == "input":
            return []
        if kind == "sum":
            return [row, place]
        if self.program.kinds[row] == Kind.RECEIVE:
            return self.reads[self.next_end[row]][place : place + 1]
        return [source for end in self._ends(row) for source in self.reads[end]]

    def _ends(self, row: int) -> list[int]:
        ends = [row]
        while self.next_end[ends[-1]] != row:
            ends.append(self.next_end[ends[-1]])
        return ends

    def evaluate(self, node: int) -> int:
        """Content of a node: first of all nodes that it is made of, depth first and without recursion."""
        stack, open_nodes = [node], set[int]()
        while stack:
            top = stack[-1]
            missing = [source for source in self._sources(top) if source not in self.known]
            if top in self.known:
                stack.pop()
            elif missing:
                if top in open_nodes:
                    raise DeadlockError("a value is made, through exchanges, from itself")
                open_nodes.add(top)
                stack.extend(missing)
            else:
                self.known[top] = self._content(top)
                stack.pop()
        return self.known[node]

    def _content(self, node: int) -> int:
        kind, row, place = self.nodes[node]
        if kind == "input":
            return _number(("input", row, place))
        if kind == "sum":
            return _number(("sum", *sorted([*_terms(self.known[row]), *_terms(self.known[place])])))
        view = self.program.row(row)
        if view.kind == Kind.RECEIVE:
            sources = self._sources(node)
            return _moved(
                self.program, row, self.known[sources[0]] if sources else _number(("nothing", place))
            )
        if view.kind == Kind.COLLECTIVE:
            ends = sorted(tuple(self.known[source] for source in self.reads[end]) for end in self._ends(row))
            return _number((_number((view.name, _means(self.program, row), *ends)), place))
        known = [self.known[source] for source in self.reads[row]]
        name = FORWARDS[0] if view.name in FORWARDS else view.name
        made = _number((name, view.stage, view.hop, view.microbatch, view.part, *known))
        return _number((made, place))


def _moved(program: Program, row: int, content: int) -> int:
    """What comes by a message: where lists stand for all devices along an axis, that of the device so many before."""
    exchange = program.row(row).exchange
    if exchange is None or exchange.ends is not None or program.axis(exchange.axes[0]).materialised:
        return content
    symbol, size = _SYMBOLS[content - 1], math.prod(program.axis(axis).size for axis in exchange.axes)
    base, before = symbol[2:] if symbol[:2] == ("turned", exchange.axes) else (content, 0)
    turn = (before + exchange.shift) % size
    return _number(("turned", exchange.axes, base, turn)) if turn else base


def _means(program: Program, row: int) -> Symbol:
    """What a collective does with what its ends give, along each axis of more than one device: its operation; of a sum, in
    whatever order it adds, what it leaves there."""
    view = program.row(row)
    if view.exchange is None:
        return ()
    axes = sorted(axis for axis in view.exchange.axes if program.axis(axis).size > 1)
    operation = operation_of(view.exchange.algorithm) if view.exchange.algorithm else ""
    if all(taken != PARTIAL for taken, _ in MAPS.get(operation, ())):
        return (operation, *axes)
    said = [layouts_of(p.layout) for p in effect_of(program, row).writes[:1]]
    return tuple((axis, _left(operation, said[0].get(axis, "") if said else "")) for axis in axes)


def _left(operation: str, said: str) -> str:
    """What a sum leaves along an axis: of several layouts that it may leave, the one that its row says."""
    made = [behind for _, behind in MAPS[operation]]
    return said if said and layout_of(said).kind in made else made[0]


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
