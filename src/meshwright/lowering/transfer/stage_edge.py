"""Edges beside the path: a stage reads what an earlier stage made, such as a skip connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from meshwright.ir.core_vocabulary import (
    MOVED_SKIP,
    MOVED_SKIP_GRADIENT,
    RECV_SKIP,
    RECV_SKIP_B,
    SEND_SKIP,
    SEND_SKIP_B,
    SKIP,
    SKIP_GRADIENT,
)
from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Kind, Pattern
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.specs.error import PlanError, ProgramError, ScheduleError
from meshwright.specs.option import option
from meshwright.specs.plan.plan import CONNECT_STAGES, Plan

SENT_BY_KIND = {SKIP.name: SEND_SKIP, SKIP_GRADIENT.name: SEND_SKIP_B}
RECEIVED_BY_KIND = {SKIP.name: RECV_SKIP, SKIP_GRADIENT.name: RECV_SKIP_B}
_MOVED_BY_KIND = {SKIP.name: MOVED_SKIP, SKIP_GRADIENT.name: MOVED_SKIP_GRADIENT}
ARROW = ">"  # in texts of plans: "0>3 1>2"


class StageEdge(NamedTuple):
    """Stage ``target`` reads output ``part`` of stage ``source``, beside what comes along the path."""

    source: int
    target: int
    part: int = 0


class LayerEdge(NamedTuple):
    """Layer ``target`` reads the output of layer ``source``, wherever these are."""

    source: int
    target: int


def parse_edges(text: str) -> tuple[LayerEdge, ...]:
    """Edges as a plan writes them, such as ``"0>3 1>2"``. Raises PlanError."""
    found = []
    for word in text.split():
        source, arrow, target = word.partition(ARROW)
        if not (arrow and source.isdecimal() and target.isdecimal()):
            raise PlanError(f"{word!r} is no edge between layers", allowed="texts such as '0>3 1>2'")
        found.append(LayerEdge(int(source), int(target)))
    return tuple(found)


def skip_edges(edges: Sequence[LayerEdge], layers_per_stage: Sequence[int]) -> tuple[StageEdge, ...]:
    """Edges between stages for edges between layers; those within a stage are its own affair.

    A stage's outputs are numbered by layer. Two layers of one stage that read the same output share an edge.
    Raises PlanError for an edge that does not go to a later layer of the model.
    """
    ends = list(accumulate(layers_per_stage))
    for source, target in edges:
        if not 0 <= source < target < ends[-1]:
            raise PlanError(
                f"layer {target} is to read the output of layer {source}",
                allowed=f"an earlier layer, of 0 to {ends[-1] - 1}",
            )
    stage_of = np.searchsorted(np.array(ends), np.arange(ends[-1]), side="right").tolist()
    leaving: dict[int, list[int]] = {}
    crossing = sorted({edge for edge in edges if stage_of[edge[0]] != stage_of[edge[1]]})
    for source, _ in crossing:
        outputs = leaving.setdefault(stage_of[source], [])
        if source not in outputs:
            outputs.append(source)
    found = {StageEdge(stage_of[s], stage_of[t], leaving[stage_of[s]].index(s)) for s, t in crossing}
    return tuple(sorted(found))


@dataclass(frozen=True)
class ConnectStages:
    """Let stages read what earlier stages made: F of the source writes it, F (and R) of the target reads it, B or I of the
    target writes its gradient, B or I of the source reads all gradients, one part for each edge.

    It stands behind the passes that replace F and B (split backward, recompute) and before `Transfers`, which sends along
    these edges whatever devices the stages are on. Sizes of the values are the table's rows ``skip``, ``skip_gradient``.
    """

    edges: tuple[StageEdge, ...] = ()
    name = CONNECT_STAGES

    def __call__(self, program: Program) -> Program:
        """The program with edges. Raises ProgramError where a target does not come behind its source on every path."""
        edges = tuple(sorted(set(self.edges)))
        _check(program, edges)
        stages = {stage for edge in edges for stage in edge[:2]}
        t, c = program.tables, program.columns
        chosen = c.effect.astype(np.int64)
        for stage in sorted(stages):
            own = c.stage == stage
            for place in np.unique(c.effect[own]).tolist():
                effect = t.effects[place]
                other = _connected(effect, stage, edges)
                if other != effect:
                    program, (number,) = with_effects(program, other)
                    chosen[own & (c.effect == place)] = number
        return program.with_columns(effect=chosen)


def with_sizes_beside(program: Program) -> Program:
    """The program with values of edges as large as what goes along the path."""
    rows = program.tables.value_bytes
    along = {row.kind: row for row in rows}
    named = (("activation", SKIP.name), ("gradient", SKIP_GRADIENT.name))
    more = tuple(along[kind]._replace(kind=beside) for kind, beside in named if kind in along)
    return program.with_tables(value_bytes=(*rows, *more))


def _check(program: Program, edges: Sequence[StageEdge]) -> None:
    for path in program.tables.paths:
        stages = [hop.stage for hop in path]
        for edge in edges:
            ends = [stages.count(edge.source), stages.count(edge.target)]
            if ends != [1, 1] or stages.index(edge.source) >= stages.index(edge.target):
                raise ProgramError(
                    f"stage {edge.target} is to read what stage {edge.source} makes, but a path goes through {stages}; "
                    f"give edges to later stages of it, each visited once"
                )


@dataclass(frozen=True)
class Connection:
    """Layers read what layers of other stages made: skip connections."""

    layer_edges: str = option("", help='edges between layers, such as "0>3 1>2"')
    name = ConnectStages.name
    after = ("split_vocabulary",)
    before = ("transfers",)

    def made(self, lowering: Lowering) -> Pass | None:
        """Edges between the stages of the program."""
        pieces, found = (
            lowering.counts,
            skip_edges(parse_edges(self.layer_edges), lowering.plan.layers_per_stage),
        )
        if not found:
            return None
        # an output leaves the last piece of its stage, and enters the first of another
        ends = list(accumulate(pieces))
        connect = ConnectStages(
            tuple(
                e._replace(source=ends[e.source] - 1, target=ends[e.target] - pieces[e.target]) for e in found
            )
        )
        return lambda program: with_sizes_beside(connect(program))


def layer_edges(plan: Plan) -> tuple[LayerEdge, ...]:
    """Edges between layers of a plan whose layers are connected beside the path. Raises PlanError."""
    return parse_edges(Connection(**(plan.options_of(Connection.name) or {})).layer_edges)


def _connected(effect: Effect, stage: int, edges: Sequence[StageEdge]) -> Effect:
    """The effect of a compute on this stage with what its edges read and write, behind what it has."""
    reads: tuple[Pattern, ...] = ()
    writes: tuple[Pattern, ...] = ()
    outputs = sorted({edge.part for edge in edges if edge.source == stage})
    if effect.name in ("F", "R"):
        reads = tuple(_at("skip", edge.source - stage, edge.part) for edge in edges if edge.target == stage)
    if effect.name == "F":
        writes = tuple(_at("skip", 0, part) for part in outputs)
    if effect.name in ("B", "I"):
        places = gradient_parts(edges)
        reads = tuple(_at("skip_gradient", 0, places[edge]) for edge in edges if edge.source == stage)
        writes = tuple(
            _at("skip_gradient", edge.source - stage, places[edge]) for edge in edges if edge.target == stage
        )
    return effect._replace(reads=(*effect.reads, *reads), writes=(*effect.writes, *writes))


def edges_of(program: Program) -> tuple[StageEdge, ...]:
    """The edges of a program, read from what its forwards read."""
    t, c = program.tables, program.columns
    pairs = np.unique(np.stack([c.effect, c.stage], axis=1), axis=0) if len(c) else np.empty((0, 2), np.int64)
    return tuple(
        sorted(
            StageEdge(stage + pattern.offset, stage, pattern.part_offset)
            for place, stage in pairs.tolist()
            for pattern in t.effects[place].reads
            if t.effects[place].name == "F" and pattern.kind == SKIP.name
        )
    )


def gradient_parts(edges: Sequence[StageEdge]) -> dict[StageEdge, int]:
    """Part of ``skip_gradient`` for each edge: its place among the edges of its source, by target, then output."""
    counts: dict[int, int] = {}
    found = {}
    for edge in sorted(edges):
        found[edge] = counts.get(edge.source, 0)
        counts[edge.source] = found[edge] + 1
    return found


def _at(kind: str, offset: int, part: int) -> Pattern:
    return Pattern(kind, index="stage", offset=offset, part_offset=part)


class MovesBeside(NamedTuple):
    """What crosses devices beside the path: for each move the row that makes it, the first row there that reads it, the
    places of its SEND and RECEIVE among ``effects``, and its part."""

    effects: tuple[Effect, ...]
    rows: tuple[tuple[int, int, int, int, int], ...]


def moves_beside(program: Program) -> MovesBeside:
    """The moves of all values of edges, in the order of the rows that make them.

    Raises ScheduleError where a row reads what nobody makes.
    """
    makers = {key: row for row, key in _uses(program, "writes")}
    first: dict[tuple[int, tuple[str, int, int, int]], int] = {}
    for row, key in _uses(program, "reads"):
        first.setdefault((int(program.list_of_row[row]), key), row)
    effects: list[Effect] = []
    rows = []
    for (device, key), reader in first.items():
        if key not in makers:
            view, (kind, stage, microbatch, part) = program.row(reader), key
            raise ScheduleError(
                f"device {view.device}, position {view.position}: {view.text} reads the {kind} of stage {stage}, "
                f"microbatch {microbatch}, part {part}, which no compute makes"
            )
        maker = makers[key]
        if int(program.list_of_row[maker]) != device:
            kind, index, _, part = key
            ends = []
            for effect, row in ((SENT_BY_KIND[kind], maker), (RECEIVED_BY_KIND[kind], reader)):
                moved = _MOVED_BY_KIND[kind]._replace(offset=index - int(program.columns.stage[row]))
                here = effect._replace(
                    reads=(moved,) * len(effect.reads), writes=(moved,) * len(effect.writes)
                )
                if here not in effects:
                    effects.append(here)
                ends.append(effects.index(here))
            rows.append((maker, reader, ends[0], ends[1], part))
    return MovesBeside(tuple(effects), tuple(sorted(rows)))


def _uses(program: Program, side: str) -> Iterator[tuple[int, tuple[str, int, int, int]]]:
    """(row, (kind, stage that numbers it, microbatch, part)) of every touch of a value of an edge, in row order."""
    c = program.columns
    patterns = {
        place: [p for p in getattr(effect, side) if p.kind in SENT_BY_KIND and effect.kind == Kind.COMPUTE]
        for place, effect in enumerate(program.tables.effects)
    }
    touching = [place for place, found in patterns.items() if found]
    for row in np.flatnonzero(np.isin(c.effect, touching)).tolist():
        for pattern in patterns[int(c.effect[row])]:
            stage = int(c.stage[row]) + pattern.offset
            yield row, (pattern.kind, stage, int(c.microbatch[row]), pattern.part_offset)
