"""Handlers: what an instruction does when it is executed. A table of them belongs to who brings the names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Kind
from meshwright.specs.error import ExecutionError


class ValueName(NamedTuple):
    """A value on one device: kind, index (hop, stage or group), microbatch and part."""

    kind: str
    index: int = 0  # type: ignore[assignment] # a tuple's method of that name is not needed
    microbatch: int = 0
    part: int = 0

    @property
    def text(self) -> str:
        """As it stands in files of values: ``kind/index/microbatch/part``."""
        return f"{self.kind}/{self.index}/{self.microbatch}/{self.part}"

    @staticmethod
    def parse(text: str) -> ValueName:
        """What `text` wrote."""
        kind, index, microbatch, part = text.split("/")
        return ValueName(kind, int(index), int(microbatch), int(part))


@dataclass(frozen=True, slots=True)
class Row:
    """What a handler is told about its instruction. ``number`` is the position in the list of this rank.

    ``peer``: rank at the other end of a SEND or RECEIVE. ``members``: ranks of a COLLECTIVE, in order of their lists.
    ``shape``: of the value that a SEND or RECEIVE moves, where it is known before the run; otherwise it travels ahead.
    ``reads`` and ``writes``: names of the values, pattern by pattern; ``is_many``: which writes are of several values.
    """

    number: int
    kind: Kind
    name: str
    stage: int
    hop: int
    microbatch: int
    part: int
    text: str
    stream: str
    is_first: bool
    is_last: bool
    exchange: Exchange | None
    peer: int
    members: tuple[int, ...]
    tag: int
    shape: tuple[int, ...] | None
    reads: tuple[tuple[ValueName, ...] | None, ...]
    writes: tuple[tuple[ValueName, ...] | None, ...]
    is_many: tuple[bool, ...]

    def outputs(self, value_of: Callable[[ValueName], Any]) -> tuple[Any, ...]:
        """What to return where the values are known by name."""
        found: list[Any] = []
        for names, many in zip(self.writes, self.is_many):
            values = tuple(value_of(name) for name in names or ())
            found.append(values if many else values[0] if values else None)
        return tuple(found)


def reads_of_kind(row: Row, inputs: Sequence[Any], kind: str) -> list[tuple[ValueName, Any]]:
    """Name and value of everything of a kind that a row reads, in the order of its effect."""
    return [(names[0], value) for names, value in zip(row.reads, inputs) if names and names[0].kind == kind]


class Pending(NamedTuple):
    """What a handler returns that has posted an exchange and not waited for it; ``wait()`` gives the outputs."""

    wait: Callable[[], Sequence[Any]]

    @staticmethod
    def of(works: Iterable[Any], *outputs: object) -> Pending:
        """Outputs that are there once these are complete."""

        def wait() -> Sequence[Any]:
            for work in works:
                work.wait()
            return outputs

        return Pending(wait)


# handler(context, row, inputs) -> outputs, or a Pending of them. `inputs` has one entry for each read pattern of the
# effect, `outputs` one for each write pattern: the value, a tuple of values for a pattern of several,
# None where the pattern's condition does not hold.
Handler = Callable[[Any, Row, Sequence[Any]], "Sequence[Any] | Pending"]

# By name, or by kind for all names of it that have none of their own.
Handlers = Mapping[str | Kind, Handler]


def joined(*tables: Handlers) -> Handlers:
    """All of them. Raises ExecutionError where two handle one name differently."""
    found: dict[str | Kind, Handler] = {}
    for name, handler in (item for table in tables for item in table.items()):
        known = found.setdefault(name, handler)
        if known is not handler:
            raise ExecutionError(
                f"{_place(handler)} wants to handle {name!r}, which {_place(known)} handles",
                next="give the instruction another name",
            )
    return found


def _place(handler: Handler) -> str:
    return f"{handler.__module__}.{getattr(handler, '__qualname__', handler)}"


def handlers_of(program: Program, handlers: Handlers) -> dict[str, Handler]:
    """For every name of the program its handler, or else that of its kind.

    Raises:
        ExecutionError: names all that have none.
    """
    effects = [program.tables.effects[e] for e in np.unique(program.columns.effect).tolist()]
    found = {e.name: handlers.get(e.name) or handlers.get(e.kind) for e in effects}
    missing = sorted({f"{e.name} ({e.kind.name})" for e in effects if found[e.name] is None})
    if missing:
        known = [f"{name.name} of any name" if isinstance(name, Kind) else name for name in handlers]
        raise ExecutionError(
            f"no handler executes {', '.join(missing)}",
            allowed=", ".join(sorted(known)),
            next="add it to HANDLERS of an owner of the program's vocabulary",
        )
    return {name: handler for name, handler in found.items() if handler is not None}
