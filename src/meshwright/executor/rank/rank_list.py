"""The list of one rank, compiled once: what each row waits for, which values it takes and makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.executor.rank.handler import Handler, Handlers, Row, ValueName, handlers_of
from meshwright.executor.rank.inline_rows import Lane, rows_run_inline
from meshwright.executor.team.exchange_ends import ends_of
from meshwright.ir.program import Program
from meshwright.ir.table import Kind, Pattern
from meshwright.ir.timing.dependency_table import Dependencies
from meshwright.ir.timing.wiring import Wiring
from meshwright.ir.value_space import codes_of
from meshwright.specs.error import ExecutionError

ShapeOf = Callable[[ValueName], "tuple[int, ...] | None"]
# (line, version, is_last): which of the lines of the value store (0: this iteration, n: n iterations ago, the last one:
# values that nothing writes), where in it, and whether nobody reads it later.
Read = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Write:
    """Where an output goes: ``version`` of this iteration, added to ``before`` (-1: it is not accumulated)."""

    version: int
    before: int
    is_kept: bool


@dataclass(slots=True)
class Step:
    """One row, ready to run. ``waits``: (row of another stream, iterations back) that must be complete before it begins, less
    those that who waits (the host, or on an asynchronous one the row's stream) has found complete before.

    ``stream``: -1 for what the host runs itself. ``signals``: does anybody wait for it? ``closes_batch``: is it the last
    of the rows that its stream posts together? ``runs_inline``: does the host run it in place of its stream?
    """

    row: Row
    handler: Handler
    waits: tuple[tuple[int, int], ...]
    reads: tuple[Read | tuple[Read, ...] | None, ...]
    writes: tuple[Write | tuple[Write, ...] | None, ...]
    stream: int
    signals: bool
    closes_batch: bool
    runs_inline: bool


@dataclass(frozen=True, eq=False)
class RankList:
    """All steps of a rank, and the size of its value store.

    ``initial``: (line, version, name) of values that the first iterations read before anybody wrote them.
    ``residents``: values that are read and that nothing writes. ``kept``: name and version of what is returned.
    ``is_asynchronous``: computes run on a stream, too, and streams wait for each other.
    """

    steps: tuple[Step, ...]
    streams: tuple[str, ...]
    num_versions: int
    num_lines: int
    initial: tuple[tuple[int, int, ValueName], ...]
    residents: tuple[ValueName, ...]
    kept: tuple[tuple[ValueName, int], ...]
    is_asynchronous: bool = False


def compile_rank(
    wiring: Wiring,
    rank: int,
    shape_of: ShapeOf,
    handlers: Handlers,
    keep: Sequence[str] = (),
    is_asynchronous: bool = False,
) -> RankList:
    """Compile the list of ``rank``: lists are ranks. ``keep``: value kinds returned after the run. ``is_asynchronous``: for a
    host that issues all ahead (`DeviceSpec.host`).

    Raises:
        ExecutionError: a name without handler, or an exchange of a rank with itself.
    """
    return _Compiler(wiring, rank, shape_of, handlers, keep, is_asynchronous).compile()


class _Compiler:
    """Holds what all rows of the list need while it is compiled."""

    def __init__(
        self,
        wiring: Wiring,
        rank: int,
        shape_of: ShapeOf,
        handlers: Handlers,
        keep: Sequence[str],
        is_asynchronous: bool,
    ) -> None:
        self.is_asynchronous = is_asynchronous
        self.wiring, self.rank, self.shape_of, self.keep = wiring, rank, shape_of, frozenset(keep)
        self.program: Program = wiring.program
        self.handlers = handlers_of(wiring.program, handlers)
        self.deps: Dependencies = wiring.deps
        self.low, self.high = (int(x) for x in self.program.offsets[rank : rank + 2])
        self.first_version = int(self.deps.write_ptr[self.low])
        num_versions = int(self.deps.write_ptr[self.high]) - self.first_version
        self.codes = self.deps.code[self.first_version : self.first_version + num_versions].tolist()
        self.num_versions = num_versions
        own = slice(int(self.deps.ptr[self.low]), int(self.deps.ptr[self.high]))
        read_lags = self.deps.lag[own][self.deps.version[own] >= 0]
        self.num_lines = int(read_lags.max(initial=0)) + 1
        self.residents: dict[int, int] = {}
        self.last_version = {code: version for version, code in enumerate(self.codes)}
        self.latest: dict[int, int] = {}  # code -> version, of the rows compiled so far
        self.streams = self._own_streams()
        self.names: dict[int, ValueName] = {}
        self.named: dict[tuple[int, Pattern], list[int]] = {}
        self.accumulating = {kind.name for kind in self.program.tables.value_kinds if kind.accumulates}

    def compile(self) -> RankList:
        """All steps in order."""
        self.last_reads = self._last_reads()
        streams = [s for s in dict.fromkeys(self._stream(i) for i in range(self.low, self.high)) if s]
        waits = self._waits()
        waited = {other for row in waits.values() for other, _ in row}
        batches = self.program.columns.batch
        lanes = [Lane(self._stream(i), int(batches[i])) for i in range(self.low, self.high)]
        inline = [False] * len(lanes) if self.is_asynchronous else rows_run_inline(lanes, waits)
        steps = tuple(
            Step(
                row := self._row(i),
                self.handlers[row.name],
                tuple(waits.get(i - self.low, ())),
                *self._values(i),
                streams.index(self._stream(i)) if self._stream(i) else -1,
                i - self.low in waited,
                self._closes_batch(i),
                inline[i - self.low],
            )
            for i in range(self.low, self.high)
        )
        kept = tuple(
            (self.name(code), version)
            for code, version in self.last_version.items()
            if self.name(code).kind in self.keep
        )
        residents = tuple(self.name(code) for code in self.residents)
        return RankList(
            steps, tuple(streams), self.num_versions, self.num_lines, self._initial(), residents, kept,
            self.is_asynchronous,
        )  # fmt: skip

    def name(self, code: int) -> ValueName:
        """A value by its code."""
        if code not in self.names:
            kind, index, microbatch, part = self.deps.space.split(int(code))
            self.names[code] = ValueName(self.program.tables.value_kinds[kind].name, index, microbatch, part)
        return self.names[code]

    def _stream(self, i: int) -> str:
        """The stream that runs a row; empty for what the host runs itself."""
        return self.streams[i - self.low]

    def _own_streams(self) -> list[str]:
        names, compute = self.program.tables.streams, int(Kind.COMPUTE)
        rows = slice(self.low, self.high)
        numbers, kinds = self.program.columns.stream[rows].tolist(), self.program.kinds[rows].tolist()
        on_host = [kind == compute and not self.is_asynchronous for kind in kinds]
        return ["" if is_host else names[number] for number, is_host in zip(numbers, on_host, strict=True)]

    def _closes_batch(self, i: int) -> bool:
        """Is row ``i`` the last of its batch on its stream?"""
        c = self.program.columns
        if not c.batch[i]:
            return True
        behind = (j for j in range(i + 1, self.high) if c.stream[j] == c.stream[i])
        follower = next(behind, None)
        return follower is None or bool(c.batch[follower] != c.batch[i])

    def _row(self, i: int) -> Row:
        view = self.program.row(i)
        path = self.program.path_of(view.microbatch)
        peer, members, tag = self._ends(i, view.kind)
        effect = self.program.tables.effects[self.program.columns.effect[i]]
        reads = tuple(self._names_of(i, p) for p in effect.reads)
        writes = tuple(self._names_of(i, p) for p in effect.writes)
        moved = next((names[0] for names in (reads if view.kind == Kind.SEND else writes) if names), None)
        known = view.kind in (Kind.SEND, Kind.RECEIVE) and moved is not None
        if view.exchange is not None and view.exchange.size:
            known = False  # a run-time size: the shape travels ahead
        return Row(
            number=i - self.low,
            kind=view.kind,
            name=view.name,
            stage=view.stage,
            hop=view.hop,
            microbatch=view.microbatch,
            part=view.part,
            text=view.text,
            stream=view.stream,
            is_first=view.hop == 0,
            is_last=view.hop == len(path) - 1,
            exchange=view.exchange,
            peer=peer,
            members=members,
            tag=tag,
            shape=self.shape_of(moved) if known and moved is not None else None,
            reads=reads,
            writes=writes,
            is_many=tuple(pattern.is_many for pattern in effect.writes),
        )

    def _ends(self, i: int, kind: Kind) -> tuple[int, tuple[int, ...], int]:
        """Peer, members and tag of an exchange: a pair's tag is the place of its SEND in the sender's list."""
        if not kind.is_exchange:
            return -1, (), 0
        lists = self.program.list_of_row
        if kind == Kind.COLLECTIVE:
            return -1, tuple(int(lists[e]) for e in ends_of(self.wiring, i)), 0
        other = int(self.wiring.next_end[i])
        if lists[other] == self.rank:
            raise ExecutionError(
                f"{self.program.text_of(i)} exchanges with its own rank",
                next="run it on an axis of two or more",
            )
        sender = i if kind == Kind.SEND else other
        return int(lists[other]), (), sender - int(self.program.offsets[lists[sender]])

    def _names_of(self, i: int, pattern: Pattern) -> tuple[ValueName, ...] | None:
        codes = self._codes(i, pattern)
        return tuple(self.name(code) for code in codes) if codes or pattern.is_many else None

    def _codes(self, i: int, pattern: Pattern) -> list[int]:
        """The values that a pattern of a row names; looked up once for the row's names and once for its places."""
        if (i, pattern) not in self.named:
            self.named[i, pattern] = codes_of(self.program, i, (pattern,), self.deps.space)
        return self.named[i, pattern]

    def _values(self, i: int) -> tuple[Any, Any]:
        """Where the row's inputs are and where its outputs go, pattern by pattern."""
        effect = self.program.tables.effects[self.program.columns.effect[i]]
        edge = int(self.deps.ptr[i])
        reads: list[Any] = []
        for pattern in effect.reads:
            found: list[Read] = []
            for code in self._codes(i, pattern):
                version = (
                    int(self.deps.version[edge]) - self.first_version
                    if edge < int(self.deps.ptr[i + 1])
                    else -1
                )
                if not (0 <= version < self.num_versions and self.codes[version] == code):
                    # carried, and nothing in the list writes it: it is what it was at the beginning
                    found.append(
                        (self.num_lines, self.residents.setdefault(code, len(self.residents)), False)
                    )
                    continue
                lag = int(self.deps.lag[edge])
                found.append((lag, version, self.last_reads.get(version) == (lag, i, edge)))
                edge += 1
            reads.append(_one_or_many(pattern, found))
        version = int(self.deps.write_ptr[i]) - self.first_version
        writes: list[Any] = []
        for pattern in effect.writes:
            made: list[Write] = []
            for code in self._codes(i, pattern):
                made.append(Write(version, self._before(code), self._is_kept(code, version)))
                self.latest[code] = version
                version += 1
            writes.append(_one_or_many(pattern, made))
        return tuple(reads), tuple(writes)

    def _accumulates(self, code: int) -> bool:
        return self.name(code).kind in self.accumulating

    def _before(self, code: int) -> int:
        """The version that an accumulating write adds to, or -1."""
        return self.latest.get(code, -1) if self._accumulates(code) else -1

    def _is_kept(self, code: int, version: int) -> bool:
        """Does anybody read it, add to it, or get it after the run?"""
        if version in self.last_reads:
            return True
        is_final = self.last_version[code] == version
        return self.name(code).kind in self.keep if is_final else self._accumulates(code)

    def _last_reads(self) -> dict[int, tuple[int, int, int]]:
        """For every version that is read: (lag, row, edge) of its last read in list order over the iterations."""
        last: dict[int, tuple[int, int, int]] = {}
        kept = {version for code, version in self.last_version.items() if self.name(code).kind in self.keep}
        for i in range(self.low, self.high):
            for edge in range(int(self.deps.ptr[i]), int(self.deps.ptr[i + 1])):
                version = int(self.deps.version[edge]) - self.first_version
                if self.deps.version[edge] < 0:
                    continue
                place = (int(self.deps.lag[edge]), i, edge)
                if version in kept:
                    place = (self.num_lines, i, edge)  # never the last: it is returned
                last[version] = max(last.get(version, place), place)
        return last

    def _initial(self) -> tuple[tuple[int, int, ValueName], ...]:
        """Values that reads of the first iterations find without a writer: (line, version, name)."""
        found: dict[tuple[int, int], ValueName] = {}
        for edge in range(int(self.deps.ptr[self.low]), int(self.deps.ptr[self.high])):
            version = int(self.deps.version[edge]) - self.first_version
            if self.deps.version[edge] >= 0:
                for lag in range(1, int(self.deps.lag[edge]) + 1):
                    found[(-lag) % self.num_lines, version] = self.name(self.codes[version])
        return tuple((line, version, name) for (line, version), name in found.items())

    def _waits(self) -> dict[int, list[tuple[int, int]]]:
        """`Step.waits` of every row that has any. What runs where the row is waited for is complete there, or in order."""
        found: dict[int, list[tuple[int, int]]] = {}
        # (who waits, row) -> smallest lag that a row before waited for
        seen: dict[tuple[str, int], int] = {}
        for i in range(self.low, self.high):
            edges = range(int(self.deps.ptr[i]), int(self.deps.ptr[i + 1]))
            wanted = [(int(self.deps.row[k]) - self.low, int(self.deps.lag[k])) for k in edges]
            if not self._stream(i):
                wanted += self._ahead_in_stream(i)
            waiter = self._stream(i) if self.is_asynchronous else ""
            for other, lag in sorted(set(wanted)):
                if self._stream(other + self.low) != waiter and seen.get((waiter, other), lag + 1) > lag:
                    seen[waiter, other] = lag
                    found.setdefault(i - self.low, []).append((other, lag))
        return found

    def _ahead_in_stream(self, i: int) -> list[tuple[int, int]]:
        """The asynchronous row right before a compute in its stream, where there is one: the compute is posted behind it."""
        stream = self.program.columns.stream
        ahead = next((j for j in range(i - 1, self.low - 1, -1) if stream[j] == stream[i]), None)
        return [] if ahead is None else [(ahead - self.low, 0)]


def _one_or_many(pattern: Pattern, found: list[Any]) -> Any:
    if pattern.is_many:
        return tuple(found)
    return found[0] if found else None
