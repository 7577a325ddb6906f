"""Refine: a program whose stages are chains of segments; each hop of a path is then as many as its stage has segments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Effect, Hop, ParameterGroup, Pattern, ValueKind
from meshwright.ir.vocabulary import Vocabulary
from meshwright.lowering.order import with_effects
from meshwright.lowering.segment.beside_rows import Neighbour, beside, neighbours
from meshwright.lowering.segment.chain_row import ChainRow
from meshwright.lowering.segment.chain_rows import WORDS, ChainRows
from meshwright.lowering.segment.part_rows import of_parts
from meshwright.schedules.order import Pairs
from meshwright.specs.error import ProgramError
from meshwright.stage.chain.chain import Chain
from meshwright.stage.relay.rounds import AGAIN

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StageRows:
    """A stage in segments: its rows, and of every parameter group that it uses the segments that do (by its place)."""

    rows: ChainRows
    users: tuple[tuple[int, ...], ...]

    @property
    def num_segments(self) -> int:
        """How many hops it is."""
        return len(self.rows.chain.segments)


@dataclass(frozen=True)
class Refine:
    """Replace every compute of a stage by the rows of its chain. It stands behind the schedule and what replaces whole
    computes (split backward, recompute), and before what moves between devices or at the end of the step.

    ``stages``: each in segments. ``steps``: of every microbatch the steps of its relays, where it is not as many devices that
    share each (groups of ranks); empty: as the chains say. ``pairs``: which neighbours run beside each other (`beside_rows`),
    ``pieces``: of every stage the one of the pipeline that it is a piece of; empty: itself.
    """

    stages: tuple[StageRows, ...]
    steps: tuple[int, ...] = ()
    pairs: Pairs = ""
    pieces: tuple[int, ...] = ()
    name = "refine"

    def __call__(self, program: Program) -> Program:
        """The program of segments. Raises ProgramError where it has exchanges already."""
        if program.columns.exchange.max(initial=-1) >= 0:
            raise ProgramError("a program with exchanges is not refined", next="refine it before Transfers")
        c, t = program.columns, program.tables
        found = neighbours(program, self.pairs, self.pieces)
        first = np.array([0, *accumulate(each.num_segments for each in self.stages)])
        program = self._with_tables(program.with_vocabulary(self._vocabulary()), first)
        program, table = self._templates(program, t.effects, c)
        steps = np.array(self.steps or (0,) * len(t.microbatches))
        place = table.place[c.effect, c.stage, np.unique(steps, return_inverse=True)[1][c.microbatch]]
        counts = table.length[place]
        rows = np.repeat(np.arange(len(c)), counts)
        chosen = np.repeat(table.first[place] - np.cumsum(counts) + counts, counts) + np.arange(len(rows))
        segment = table.segment[chosen]
        paths = np.array([each.path for each in t.microbatches], dtype=np.int64)[c.microbatch[rows]]
        hops = _first_hops(t.paths, [each.num_segments for each in self.stages])
        columns = Columns.of(
            len(rows), effect=table.effect[chosen], stage=first[c.stage[rows]] + segment,
            hop=hops[paths, c.hop[rows]] + segment, microbatch=c.microbatch[rows], part=c.part[rows] + table.part[chosen],
            stream=table.stream[chosen], exchange=table.exchange[chosen],
        )  # fmt: skip
        ends = np.concatenate([[0], np.cumsum(counts)])
        is_open = np.ones(len(c), dtype=bool)
        for first_unit, second_unit in found:
            is_open[first_unit.begin : second_unit.end] = False
        order = _fetched_ahead(table.lead[place], table.late[place], ends, program.offsets, is_open)
        _take_turns(order, found, table.rows, place, ends, first[c.stage])
        return replace(program, columns=columns.take(order), offsets=ends[program.offsets])

    def _vocabulary(self) -> Vocabulary:
        kinds: dict[str, ValueKind] = {}
        for each in self.stages:
            for name, kind in each.rows.kinds.items():
                adds = kind.accumulates or (name in kinds and kinds[name].accumulates)
                kinds[name] = kind._replace(accumulates=adds)
        return WORDS | Vocabulary.of(*kinds.values())

    def _templates(
        self, program: Program, effects: Sequence[Effect], columns: Columns
    ) -> tuple[Program, _Templates]:
        """The rows of every compute of every stage, those of stages that are alike once."""
        known: dict[tuple[int, int, ChainRows], int] = {}
        kinds = sorted({*self.steps}) or [0]
        place = np.full((len(effects), len(self.stages), len(kinds)), -1, dtype=np.int64)
        rows, chains = list[tuple[ChainRow, ...]](), list[Chain]()
        for e, stage in sorted({*zip(columns.effect.tolist(), columns.stage.tolist(), strict=True)}):
            for kind, steps in enumerate(kinds):
                key = (e, steps, self.stages[stage].rows)
                if key not in known:
                    known[key] = len(rows)
                    own = key[2].with_steps(steps) if steps else key[2]
                    rows.append(own.of(effects[e]))
                    chains.append(own.chain)
                place[e, stage, kind] = known[key]
        flat = [row for each in rows for row in each]
        program, effect = with_effects(program, *(row.effect for row in flat))
        exchanges = tuple(dict.fromkeys(row.exchange for row in flat if row.exchange is not None))
        streams = tuple(dict.fromkeys((*program.tables.streams, *(row.stream for row in flat))))
        length = np.array([len(each) for each in rows])
        return program.with_tables(exchanges=exchanges, streams=streams), _Templates(
            place, np.cumsum(length) - length, length, np.array(effect), np.array([row.segment for row in flat]),
            np.array([streams.index(row.stream) for row in flat]),
            np.array([-1 if row.exchange is None else exchanges.index(row.exchange) for row in flat]),
            np.array([row.part for row in flat]), np.array([_num_leading(each) for each in rows]),
            np.array([_last_fetching(each, chain) for each, chain in zip(rows, chains, strict=True)]), rows,
        )  # fmt: skip

    def _with_tables(self, program: Program, first: Ints) -> Program:
        """Paths, groups and duties of segments."""
        t = program.tables
        paths = tuple(
            tuple(
                Hop(int(first[hop.stage]) + k, hop.device)
                for hop in path
                for k in range(self.stages[hop.stage].num_segments)
            )
            for path in t.paths
        )
        groups = tuple(self._group(t.groups_of_stage, g, group, first) for g, group in enumerate(t.groups))
        duties = tuple(own for duty in t.duties if (own := self._duty(duty, first)) is not None)
        added = tuple(dict.fromkeys(duty for each in self.stages for duty in each.rows.duties))
        names = (f"{n}:{one.name}" for n, each in enumerate(self.stages) for one in each.rows.chain.segments)
        duties = (*duties, *added, *self._duties(first))
        return program.with_tables(paths=paths, groups=groups, duties=duties, stage_names=tuple(names))

    def _duties(self, first: Ints) -> Iterator[Duty]:
        """R of the segments that are recomputed."""
        stages = tuple(
            int(first[stage]) + number
            for stage, each in enumerate(self.stages)
            for number in sorted(each.rows.chain.recomputed)
        )
        if stages:
            yield of_parts(Duty("R", stages=stages), self._num_parts)

    @property
    def _num_parts(self) -> int:
        """Of each microbatch, on all stages."""
        return self.stages[0].rows.num_parts

    def _duty(self, duty: Duty, first: Ints) -> Duty | None:
        """What is due of segments: W of those that train, all else of all of a stage; None where none does."""
        duty = of_parts(duty, self._num_parts)
        if duty.name != "W" and not duty.stages:
            return duty
        due = tuple(
            int(first[stage]) + k
            for stage in duty.stages or range(len(self.stages))
            for k, trains in enumerate(self.stages[stage].rows.trains)
            if trains or duty.name != "W"
        )
        return duty._replace(stages=due) if due else None

    def _group(
        self, groups_of_stage: Sequence[Sequence[int]], g: int, group: ParameterGroup, first: Ints
    ) -> ParameterGroup:
        users = (
            int(first[stage]) + k
            for stage in group.stages
            for k in self.stages[stage].users[groups_of_stage[stage].index(g)]
        )
        return group._replace(stages=tuple(users))


class _Templates(NamedTuple):
    """The rows of all computes one behind the other; ``place`` [effect, stage, steps] is a place among ``first`` and
    ``length``, which say where in them its rows are, ``lead`` (so many rows fetch something again in front of its computes)
    and ``late`` (which row is the last compute that reads such a thing, -1: none). ``rows``: those of a place."""

    place: Ints
    first: Ints
    length: Ints
    effect: Ints
    segment: Ints
    stream: Ints
    exchange: Ints
    part: Ints
    lead: Ints
    late: Ints
    rows: Sequence[tuple[ChainRow, ...]]


def _num_leading(rows: Sequence[ChainRow]) -> int:
    """How many rows at the beginning fetch what a forward did not keep."""
    fetches = (row.exchange is not None and _is_again(row.effect.writes) for row in rows)
    return sum(itertools.takewhile(bool, fetches))


def _last_fetching(rows: Sequence[ChainRow], chain: Chain) -> int:
    """The last compute of a backward that reads what was fetched again, or of a forward that runs again, what will be; -1:
    none does."""
    fetched = {each.move.write for each in chain.deliveries if each.move.is_again}

    def is_product(row: ChainRow) -> bool:
        is_first = row.effect.name == "R" and any(each.kind in fetched for each in row.effect.reads)
        return row.exchange is None and (is_first or _is_again(row.effect.reads))

    return max((n for n, row in enumerate(rows) if is_product(row)), default=-1)


def _is_again(patterns: Sequence[Pattern]) -> bool:
    return any(each.kind.endswith(AGAIN) for each in patterns)


def _take_turns(
    order: Ints, pairs: Sequence[tuple[Neighbour, Neighbour]], rows: Sequence[tuple[ChainRow, ...]], place: Ints, ends: Ints,
    first: Ints,
) -> None:  # fmt: skip
    """Change the order of rows where two units stand beside each other. `place`: of every compute among `rows`; `first`: the
    first segment of its stage."""
    known: dict[tuple[tuple[int, ...], ...], Ints] = {}

    def rows_of(unit: Neighbour) -> list[ChainRow]:
        own = range(unit.begin, unit.end)
        return [row._replace(segment=int(first[n]) + row.segment) for n in own for row in rows[place[n]]]

    for one, other in pairs:
        key = tuple(tuple(place[each.begin : each.end].tolist()) for each in (one, other))
        if key not in known:
            known[key] = np.array(beside(rows_of(one), rows_of(other)))
        begin = int(ends[one.begin])
        order[begin : int(ends[other.end])] = begin + known[key]


def _fetched_ahead(lead: Ints, late: Ints, ends: Ints, offsets: Ints, is_open: NDArray[np.bool_]) -> Ints:
    """The order of rows in which what a backward fetches first is fetched beside the last product of the backward, or of the
    forward that runs again, right before it on its device: within a chain every other such exchange is. `lead` and `late`:
    of computes; `is_open`: may its rows stand elsewhere?"""
    behind = np.flatnonzero((lead[1:] > 0) & (late[:-1] >= 0) & is_open[1:] & is_open[:-1]) + 1
    behind = behind[~np.isin(behind, offsets)]
    key = np.arange(ends[-1], dtype=np.float64)
    counts = lead[behind]
    moved = np.repeat(ends[behind] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    key[moved] = np.repeat(ends[behind - 1] + late[behind - 1] - 0.5, counts)
    return np.argsort(key, kind="stable")


def _first_hops(paths: Sequence[Sequence[Hop]], num_segments: Sequence[int]) -> Ints:
    """The first hop of every hop of every path, once stages have so many: [paths, hops]."""
    found = np.zeros((len(paths), max(len(path) for path in paths)), dtype=np.int64)
    for number, path in enumerate(paths):
        found[number, 1 : len(path)] = np.cumsum([num_segments[hop.stage] for hop in path[:-1]])
    return found
