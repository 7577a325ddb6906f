"""`Program`: for every device the ordered list of instructions it is told to do. Columns are the truth, rows are views."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import CORE
from meshwright.ir.table import (
    Duty,
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Size,
    ValueBytes,
    ValueKind,
    Work,
)
from meshwright.ir.vocabulary import Vocabulary
from meshwright.specs.error import ProgramError

IntArray = NDArray[Any]
COLUMN_TYPES: dict[str, type] = {
    "effect": np.int16,
    "stage": np.int16,
    "hop": np.int16,
    "microbatch": np.int32,
    "part": np.int16,
    "stream": np.int16,
    "work": np.int16,
    "exchange": np.int32,
    "batch": np.int32,
}


class Axis(NamedTuple):
    """An axis of the mesh. Lists exist for every coordinate of a materialised axis, once for a collapsed one."""

    name: str
    size: int
    materialised: bool = True


class Instruction(NamedTuple):
    """A read-only view of one row. ``text`` is torch's spelling, such as ``1SEND_B3``."""

    device: int
    position: int
    row: int
    kind: Kind
    name: str
    stage: int
    hop: int
    microbatch: int
    part: int
    stream: str
    work: Work | None
    exchange: Exchange | None
    batch: int
    after: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Columns:
    """One array per column, a row an instruction, the lists of the devices one behind the other.

    ``work`` and ``exchange`` are -1 where there is none; ``batch`` is 0 outside of batches.
    """

    effect: IntArray
    stage: IntArray
    hop: IntArray
    microbatch: IntArray
    part: IntArray
    stream: IntArray
    work: IntArray
    exchange: IntArray
    batch: IntArray

    @staticmethod
    def of(num_rows: int, **given: Any) -> Columns:
        """Columns with these values (arrays or one number for all rows) and the defaults elsewhere."""
        default = {"work": -1, "exchange": -1}
        return Columns(
            **{
                name: np.broadcast_to(
                    _column(name, given.get(name, default.get(name, 0))), (num_rows,)
                ).copy()
                for name in COLUMN_TYPES
            }
        )

    def __len__(self) -> int:
        return len(self.effect)

    def take(self, rows: Any) -> Columns:
        """The rows at these places, in this order."""
        return Columns(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @staticmethod
    def concatenate(parts: Sequence[Columns]) -> Columns:
        """All rows of the parts, one part behind the other."""
        return Columns(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_TYPES}
        )

    def with_column(self, name: str, values: Any) -> Columns:
        """The same rows with one column replaced."""
        return replace(self, **{name: _column(name, values)})


def _column(name: str, values: Any) -> IntArray:
    """Values as a column holds them; one that does not fit is an error, never another number."""
    given, limits = np.asarray(values), np.iinfo(COLUMN_TYPES[name])
    if given.dtype != limits.dtype and given.size and (given.min() < limits.min or given.max() > limits.max):
        raise ProgramError(
            f"the column {name} has {given.max()}; it holds {limits.min} to {limits.max}; make the program smaller"
        )
    return given.astype(limits.dtype, copy=False)


@dataclass(frozen=True)
class Tables:
    """What the numbers in the columns stand for. All of it is interned: rows share it."""

    effects: tuple[Effect, ...] = ()
    value_kinds: tuple[ValueKind, ...] = ()
    works: tuple[Work, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    streams: tuple[str, ...] = ("compute",)
    microbatches: tuple[Microbatch, ...] = ()
    paths: tuple[tuple[Hop, ...], ...] = ((),)
    groups: tuple[ParameterGroup, ...] = ()
    sizes: tuple[Size, ...] = ()
    value_bytes: tuple[ValueBytes, ...] = ()
    duties: tuple[Duty, ...] = ()
    # of stages that are segments, for people: neither hashed nor compared
    stage_names: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def name_of_stage(self, stage: int) -> str:
        """What a stage is a segment of, and what it computes; empty where stages have no names."""
        return self.stage_names[stage] if stage < len(self.stage_names) else ""

    def index_of_kind(self, name: str) -> int:
        """The place of a value kind in the table; `ProgramError` where it is missing."""
        index = self._places_of_kinds.get(name)
        if index is not None:
            return index
        known = ", ".join(kind.name for kind in self.value_kinds)
        raise ProgramError(
            f"the program has no value kind {name!r}; it has {known}; add it to the table of value kinds"
        )

    @cached_property
    def _places_of_kinds(self) -> dict[str, int]:
        return {kind.name: index for index, kind in reversed(list(enumerate(self.value_kinds)))}

    @cached_property
    def groups_of_stage(self) -> tuple[tuple[int, ...], ...]:
        """For every stage the parameter groups that it uses, in the table's order."""
        found: list[list[int]] = [[] for _ in range(self.num_stages)]
        for g, group in enumerate(self.groups):
            for stage in set(group.stages):
                found[stage].append(g)
        return tuple(map(tuple, found))

    @cached_property
    def devices_of_stage(self) -> tuple[tuple[int, ...], ...]:
        """For every stage the devices (along the first axis) on which a path visits it, rising.

        Several where microbatches take different ways: each of these devices holds a copy of the stage's parameters.
        """
        found: list[set[int]] = [set() for _ in range(self.num_stages)]
        for stage, device in {hop for path in self.paths for hop in path}:
            found[stage].add(device)
        return tuple(tuple(sorted(devices)) for devices in found)

    @cached_property
    def num_stages(self) -> int:
        """One more than the largest stage of any path or group."""
        stages = [hop.stage for path in self.paths for hop in path]
        stages += [stage for group in self.groups for stage in group.stages]
        return max(stages, default=-1) + 1


@dataclass(frozen=True, eq=False)
class Program:
    """The body of a loop, for every device. ``offsets[d]:offsets[d+1]`` are the rows of list ``d`` (row-major over the
    materialised axes). ``after``: (row, earlier row of the same list) pairs, sorted, the only dependency that is written.
    ``vocabulary``: what passes find the meaning of names and value kinds in; the tables say all that the program touches."""

    axes: tuple[Axis, ...]
    tables: Tables
    columns: Columns
    offsets: NDArray[np.int64]
    after: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    vocabulary: Vocabulary = CORE

    @property
    def num_rows(self) -> int:
        """Instructions in all lists together."""
        return len(self.columns)

    @property
    def num_lists(self) -> int:
        """Lists that are stored (devices, where no axis is collapsed)."""
        return len(self.offsets) - 1

    @property
    def num_devices(self) -> int:
        """Devices that the program runs on: the product of all axes."""
        return int(np.prod([axis.size for axis in self.axes]))

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """Kind of every row (looked up through its effect)."""
        table = np.array([int(effect.kind) for effect in self.tables.effects] or [0], dtype=np.uint8)
        return table[self.columns.effect]

    @cached_property
    def list_of_row(self) -> NDArray[np.int32]:
        """List of every row."""
        return np.repeat(np.arange(self.num_lists, dtype=np.int32), np.diff(self.offsets))

    @cached_property
    def list_axes(self) -> tuple[Axis, ...]:
        """The materialised axes: those over which lists are stored."""
        return tuple(axis for axis in self.axes if axis.materialised)

    def coordinates(self, device: int) -> dict[str, int]:
        """Coordinates of a list along the materialised axes."""
        result: dict[str, int] = {}
        for axis in reversed(self.list_axes):
            device, result[axis.name] = divmod(device, axis.size)
        return dict(reversed(result.items()))

    def axis(self, name: str) -> Axis:
        """The axis of this name, or `ProgramError`."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise ProgramError(f"no axis {name!r}; the program has {', '.join(axis.name for axis in self.axes)}")

    def path_of(self, microbatch: int) -> tuple[Hop, ...]:
        """The path of a microbatch."""
        if not self.tables.microbatches:
            return self.tables.paths[0]
        return self.tables.paths[self.tables.microbatches[microbatch].path]

    def text_of(self, row: int) -> str:
        """torch's spelling of a row: stage, name, microbatch, and the part where there is one."""
        c = self.columns
        part = f".{c.part[row]}" if c.part[row] else ""
        microbatch = "" if self._is_per_iteration(int(c.effect[row])) else int(c.microbatch[row])
        return f"{c.stage[row]}{self.tables.effects[c.effect[row]].name}{microbatch}{part}"

    def _is_per_iteration(self, effect: int) -> bool:
        return self.tables.effects[effect].name in self._names_per_iteration

    @cached_property
    def _names_per_iteration(self) -> frozenset[str]:
        return frozenset(duty.name for duty in self.tables.duties if duty.per in ("stage", "group"))

    def row(self, row: int) -> Instruction:
        """The instruction at a row."""
        c, t = self.columns, self.tables
        device = int(np.searchsorted(self.offsets, row, side="right") - 1)
        effect = t.effects[c.effect[row]]
        work, exchange = int(c.work[row]), int(c.exchange[row])
        return Instruction(
            device=device,
            position=row - int(self.offsets[device]),
            row=row,
            kind=effect.kind,
            name=effect.name,
            stage=int(c.stage[row]),
            hop=int(c.hop[row]),
            microbatch=int(c.microbatch[row]),
            part=int(c.part[row]),
            stream=t.streams[c.stream[row]],
            work=t.works[work] if work >= 0 else None,
            exchange=t.exchanges[exchange] if exchange >= 0 else None,
            batch=int(c.batch[row]),
            after=self.after_of(row),
            text=self.text_of(row),
        )

    def after_of(self, row: int) -> tuple[int, ...]:
        """Earlier rows that a pass made this row wait for."""
        if not len(self.after):
            return ()
        low, high = np.searchsorted(self.after[:, 0], [row, row + 1])
        return tuple(int(x) for x in self.after[low:high, 1])

    def instructions(self, device: int) -> Iterator[Instruction]:
        """The instructions of one list, in order."""
        for row in range(int(self.offsets[device]), int(self.offsets[device + 1])):
            yield self.row(row)

    def with_vocabulary(self, brought: Vocabulary) -> Program:
        """The same program, written in more words. Raises ProgramError where one means something else here."""
        return replace(self, vocabulary=self.vocabulary | brought)

    def with_tables(self, **changes: Any) -> Program:
        """The same rows with some tables replaced."""
        return replace(self, tables=replace(self.tables, **changes))

    def with_columns(self, **changes: Any) -> Program:
        """The same program with some columns replaced."""
        columns = self.columns
        for name, values in changes.items():
            columns = columns.with_column(name, values)
        return replace(self, columns=columns)

    def reordered(self, order: IntArray, offsets: NDArray[np.int64]) -> Program:
        """The rows ``order`` (of this program), cut into lists at ``offsets``. ``after`` follows; a dropped end drops it."""
        after = self.after
        if len(after):
            place = np.full(self.num_rows, -1, dtype=np.int64)
            place[order] = np.arange(len(order))
            after = place[after]
            after = after[(after >= 0).all(axis=1)]
            after = after[np.lexsort((after[:, 1], after[:, 0]))]
        return replace(
            self, columns=self.columns.take(order), offsets=np.asarray(offsets, dtype=np.int64), after=after
        )

    def inserted(self, before: IntArray, lists: IntArray, rows: Columns) -> Program:
        """With new rows, each standing before the old row ``before[i]`` (or at the end of ``lists[i]``), in the given order.

        ``before[i]`` is a row of this program, or ``offsets[lists[i] + 1]`` for the end of that list.
        """
        old_lists = self.list_of_row
        # old rows sort behind the new ones that stand before them; the list is the first key for rows at a list's end
        keys = (
            np.concatenate([np.ones(self.num_rows, dtype=np.int8), np.zeros(len(rows), dtype=np.int8)]),
            np.concatenate([np.arange(self.num_rows), np.asarray(before)]),
            np.concatenate([old_lists, np.asarray(lists, dtype=np.int32)]),
        )
        order = np.lexsort(keys)
        counts = np.bincount(keys[2], minlength=self.num_lists)
        grown = replace(self, columns=Columns.concatenate([self.columns, rows]))
        return grown.reordered(order, np.concatenate([[0], np.cumsum(counts)]))

    def expand(self, axis: str) -> Program:
        """The same program with the lists of a collapsed axis stored one by one."""
        target = self.axis(axis)
        if target.materialised:
            return self
        axes = tuple(a._replace(materialised=True) if a.name == axis else a for a in self.axes)
        inner = int(
            np.prod(
                [a.size for a in self.axes[self.axes.index(target) + 1 :] if a.materialised], dtype=np.int64
            )
        )
        outer = self.num_lists // inner
        blocks = np.arange(self.num_lists).reshape(outer, 1, inner)
        sources = np.broadcast_to(blocks, (outer, target.size, inner)).reshape(-1)
        lengths = np.diff(self.offsets)[sources]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        shift = self.offsets[sources] - offsets[:-1]
        order = np.arange(offsets[-1]) + np.repeat(shift, lengths)
        after = self.after
        if len(after):
            owner = np.searchsorted(self.offsets, after[:, 0], side="right") - 1
            copies = [after[owner == source] - delta for source, delta in zip(sources, shift, strict=True)]
            after = np.concatenate(copies)
        return replace(self, axes=axes, columns=self.columns.take(order), offsets=offsets, after=after)

    def digest(self) -> str:
        """Hash of everything the program says, whatever its tables are numbered by; a trace carries the digest of what it
        traced."""
        same = canonical(self)
        state = hashlib.sha256(repr((same.axes, same.tables)).encode())
        for name in COLUMN_TYPES:
            state.update(np.ascontiguousarray(getattr(same.columns, name)).tobytes())
        state.update(np.ascontiguousarray(same.offsets).tobytes())
        state.update(np.ascontiguousarray(same.after).tobytes())
        return state.hexdigest()[:16]

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        axes = " ".join(f"{a.name}={a.size}{'' if a.materialised else '*'}" for a in self.axes)
        return f"<Program {axes}: {self.num_rows} instructions in {self.num_lists} lists>"


def canonical(program: Program) -> Program:
    """The same program with effects, works, exchanges and streams numbered by first appearance, unused ones dropped."""
    columns, tables = program.columns, {}
    for column, table in (
        ("effect", "effects"),
        ("work", "works"),
        ("exchange", "exchanges"),
        ("stream", "streams"),
    ):
        values, size = getattr(columns, column), len(getattr(program.tables, table))
        first = np.full(
            size + 1, len(values), dtype=np.int64
        )  # the last place is that of rows that have none
        first[values[::-1]] = np.arange(len(values) - 1, -1, -1)
        order = np.argsort(first[:size], kind="stable")[: int((first[:size] < len(values)).sum())]
        number = np.full(size + 1, -1, dtype=np.int64)
        number[order] = np.arange(len(order))
        tables[table] = tuple(getattr(program.tables, table)[k] for k in order.tolist())
        columns = columns.with_column(column, number[values])
    kinds = program.vocabulary.kinds_of(tables["effects"], program.tables.value_kinds)
    named = {row.kind for row in program.tables.value_bytes}
    kinds += tuple(kind for kind in program.tables.value_kinds if kind.name in named and kind not in kinds)
    duties = tuple(sorted(program.tables.duties))
    return replace(program.with_tables(**tables, value_kinds=kinds, duties=duties), columns=columns)


class ProgramBuilder:
    """Writes a program row by row, for probes, tests and text; passes work on columns instead.

    ``vocabulary``: words beyond the core's; where no duties are given, they are those of its names.
    """

    def __init__(self, axes: Sequence[Axis], *, vocabulary: Vocabulary | None = None, **tables: Any) -> None:
        self.axes = tuple(axes)
        self.brought, self.tables = vocabulary or Vocabulary(), tables
        num_lists = int(np.prod([axis.size for axis in self.axes if axis.materialised]))
        self._rows: list[list[dict[str, Any]]] = [[] for _ in range(num_lists)]
        self._after: list[list[tuple[int, ...]]] = [[] for _ in range(num_lists)]
        self._interned: dict[str, dict[Any, int]] = {
            name: {value: place for place, value in enumerate(tables.get(name, default))}
            for name, default in (
                ("effects", ()),
                ("works", ()),
                ("exchanges", ()),
                ("streams", ("compute",)),
            )
        }

    def intern(self, table: str, value: Any) -> int:
        """The place of a value in a table, added at its end where it is new."""
        rows = self._interned[table]
        return rows.setdefault(value, len(rows))

    def add(
        self,
        device: int,
        effect: Effect,
        *,
        stage: int = 0,
        hop: int | None = None,
        microbatch: int = 0,
        part: int = 0,
        stream: str = "compute",
        work: Work | None = None,
        exchange: Exchange | None = None,
        batch: int = 0,
        after: tuple[int, ...] = (),
    ) -> int:
        """Append a row to a list; ``after`` are positions in the same list. Returns its position."""
        self._rows[device].append(
            {
                "effect": self.intern("effects", effect),
                "stage": stage,
                "hop": stage if hop is None else hop,
                "microbatch": microbatch,
                "part": part,
                "stream": self.intern("streams", stream),
                "work": -1 if work is None else self.intern("works", work),
                "exchange": -1 if exchange is None else self.intern("exchanges", exchange),
                "batch": batch,
            }
        )
        self._after[device].append(after)
        return len(self._rows[device]) - 1

    def build(self) -> Program:
        """The program; value kinds that the effects name and nobody gave come from the vocabulary."""
        interned = {name: tuple(rows) for name, rows in self._interned.items()}
        names = {effect.name for effect in interned["effects"]}
        tables = {"duties": self.brought.duties_of(names), **self.tables, **interned}
        vocabulary = CORE | self.brought
        tables["value_kinds"] = value_kinds_of(vocabulary, tables["effects"], tables.get("value_kinds", ()))
        rows = [row for device in self._rows for row in device]
        columns = Columns.of(len(rows), **{name: [row[name] for row in rows] for name in COLUMN_TYPES})
        offsets = np.concatenate([[0], np.cumsum([len(device) for device in self._rows])]).astype(np.int64)
        after = [
            (offsets[device] + position, offsets[device] + earlier)
            for device, waits in enumerate(self._after)
            for position, earlier_rows in enumerate(waits)
            for earlier in earlier_rows
        ]
        pairs = np.array(sorted(after), dtype=np.int64).reshape(-1, 2)
        return Program(self.axes, Tables(**tables), columns, offsets, pairs, vocabulary)


def value_kinds_of(
    vocabulary: Vocabulary, effects: Sequence[Effect], given: Sequence[ValueKind]
) -> tuple[ValueKind, ...]:
    """Value kinds for a table: those given, then what else the effects touch, in a fixed order."""
    return tuple(dict.fromkeys((*given, *vocabulary.kinds_of(effects, given))))
