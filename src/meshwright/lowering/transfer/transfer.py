"""Transfers: a send behind every compute whose value another device reads, and the receive there in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.axis import FIRST_AXIS
from meshwright.ir.core_vocabulary import RECV_B, RECV_F, SEND_B, SEND_F
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Effect, Exchange
from meshwright.lowering.order import with_effects
from meshwright.lowering.transfer.stage_edge import moves_beside
from meshwright.specs.error import ScheduleError

Ints = NDArray[Any]
COMPUTES_AHEAD = 1  # a receive stands at least this many computes before its use, so that it runs beside one


@dataclass(frozen=True)
class Transfers:
    """Insert SEND_F, RECV_F, SEND_B, RECV_B wherever a hop is on another device than the one before it, and the same for
    what stages read of others beside the path (`ConnectStages`), once for each device that reads it.

    One stream a peer and direction. The receives from a peer stand in the order of its sends, each at least one compute
    before its use: no legal order of computes then deadlocks, on one host thread or many.
    """

    name = "transfers"

    def __call__(self, program: Program) -> Program:
        """The program with its sends and receives."""
        along = [_edges(program, ("F",), +1), _edges(program, ("B", "I"), -1)]
        sender, receiver, toward = (np.concatenate([edge[k] for edge in along]) for k in range(3))
        beside = moves_beside(program)
        if not len(sender) and not beside.rows:
            return program
        moves, move = _laid_moves(program, sender, toward)
        program, effects = with_effects(program, *moves, *beside.effects)
        number, rows = np.array(effects), np.array(beside.rows, dtype=np.int64).reshape(-1, 5).T
        sender, receiver = np.concatenate([sender, rows[0]]), np.concatenate([receiver, rows[1]])
        send = number[np.concatenate([move, len(moves) + rows[2]])]
        receive = number[np.concatenate([move + 1, len(moves) + rows[3]])]
        part = np.concatenate([_parts(program)[sender[: len(toward)]], rows[4]])
        order = np.argsort(sender, kind="stable")
        sender, receiver, send, receive, part = (
            column[order] for column in (sender, receiver, send, receive, part)
        )
        source, target = (
            program.list_of_row[sender].astype(np.int64),
            program.list_of_row[receiver].astype(np.int64),
        )
        program, exchange, streams = _with_classes(program, source, target)
        before = receive_places(program, source, target, receiver)
        sends = _rows(program, sender, send, streams["send"][target], exchange, part)
        receives = _rows(program, receiver, receive, streams["receive"][source], exchange, part)
        return program.inserted(
            np.concatenate([sender + 1, before]),
            np.concatenate([source, target]),
            Columns.concatenate([sends, receives]),
        )


def _edges(program: Program, names: tuple[str, ...], toward: int) -> tuple[Ints, Ints, Ints]:
    """Producer row, first reading row and direction of every value that crosses devices along its path."""
    t, c = program.tables, program.columns
    chosen = np.isin(c.effect, [e for e, effect in enumerate(t.effects) if effect.name in names])
    rows = np.flatnonzero(chosen)
    hops, microbatches = c.hop[rows].astype(np.int64), c.microbatch[rows].astype(np.int64)
    longest = max(len(path) for path in t.paths)
    device = np.full((len(t.paths), longest + 2), -1, dtype=np.int64)
    for number, path in enumerate(t.paths):
        device[number, 1 : len(path) + 1] = [hop.device for hop in path]
    parts = _parts(program)[rows]
    num_parts = 1 + int(parts.max(initial=0))
    place = np.full((longest + 2, len(t.microbatches), num_parts), -1, dtype=np.int64)
    place[hops[::-1] + 1, microbatches[::-1], parts[::-1]] = rows[::-1]
    paths = np.array([microbatch.path for microbatch in t.microbatches], dtype=np.int64)[microbatches]
    other = device[paths, hops + 1 + toward]
    crosses = (other >= 0) & (other != device[paths, hops + 1])
    consumer = place[hops + 1 + toward, microbatches, parts][crosses]
    if len(consumer) and consumer.min() < 0:
        row = int(rows[crosses][np.argmin(consumer)])
        view = program.row(row)
        raise ScheduleError(
            f"device {view.device}, position {view.position}: nobody reads what {view.text} makes: "
            f"hop {view.hop + toward} of microbatch {view.microbatch} has no {' or '.join(names)}"
        )
    return rows[crosses], consumer, np.full(int(crosses.sum()), toward)


def _parts(program: Program) -> Ints:
    """The part of what every row gives to the next stage, or the one before: its own, where microbatches are cut."""
    kinds = {effect.reads[0].kind for effect in (SEND_F, SEND_B)}
    patterns = [p for effect in program.tables.effects for p in (*effect.reads, *effect.writes)]
    if not any(p.kind in kinds and p.part == "row" for p in patterns):
        return np.zeros(program.num_rows, dtype=np.int64)
    return program.columns.part.astype(np.int64)


def _laid_moves(program: Program, sender: Ints, toward: Ints) -> tuple[list[Effect], Ints]:
    """Sends and receives of values along paths as their makers lay them along axes, and of the parts in which they make them;
    the place of each transfer's send, the receive stands behind it."""
    pairs, effects = {1: (SEND_F, RECV_F), -1: (SEND_B, RECV_B)}, program.tables.effects
    kinds = {way: pair[0].reads[0].kind for way, pair in pairs.items()}
    keys, inverse = np.unique(
        np.stack([-toward, program.columns.effect[sender]], axis=1), axis=0, return_inverse=True
    )
    found: list[Effect] = []
    place = np.zeros(len(keys), dtype=np.int64)
    for number, (back, maker) in enumerate(keys.tolist()):
        send, receive = pairs[-back]
        made = [p for p in effects[maker].writes if p.kind == kinds[-back]]
        how: dict[str, Any] = {
            "layout": next((p.layout for p in made if p.layout), ""),
            "part": next((p.part for p in made if p.part == "row"), "zero"),
        }
        laid = (
            send._replace(reads=(send.reads[0]._replace(**how),)),
            receive._replace(writes=(receive.writes[0]._replace(**how),)),
        )
        if laid[0] not in found:
            found += laid
        place[number] = found.index(laid[0])
    return found, place[inverse.reshape(-1)]


def _with_classes(program: Program, source: Ints, target: Ints) -> tuple[Program, Ints, dict[str, Ints]]:
    """Exchange classes and streams of all pairs of devices, and the class of every transfer."""
    size = program.num_lists
    pairs, inverse = np.unique(source * size + target, return_inverse=True)
    first = len(program.tables.exchanges)
    classes = tuple(Exchange((FIRST_AXIS,), (int(pair) // size, int(pair) % size)) for pair in pairs)
    names = list(program.tables.streams)
    streams = {}
    for direction, peers in (("send", np.unique(target)), ("receive", np.unique(source))):
        streams[direction] = np.full(size, -1, dtype=np.int64)
        for peer in peers.tolist():
            streams[direction][peer] = len(names)
            names.append(f"{direction}/{FIRST_AXIS}{peer}")
    program = program.with_tables(exchanges=program.tables.exchanges + classes, streams=tuple(names))
    return program, first + inverse, streams


def receive_places(program: Program, source: Ints, target: Ints, receiver: Ints) -> Ints:
    """Row before which each receive stands: one compute before the earliest use among this and all later sends of the
    peer, so that receives keep the order of the sends. Transfers come in the order of their sends."""
    first = program.offsets[target]
    wanted = np.maximum(receiver - COMPUTES_AHEAD, first)
    order = np.argsort(source * program.num_lists + target, kind="stable")
    pair = (source * program.num_lists + target)[order]
    sorted_wanted = wanted[order]
    result: Ints = np.empty_like(wanted)
    for piece in np.split(np.arange(len(order)), np.flatnonzero(pair[1:] != pair[:-1]) + 1):
        result[order[piece]] = np.minimum.accumulate(sorted_wanted[piece][::-1])[::-1]
    return result


def _rows(program: Program, of: Ints, effect: Ints, stream: Ints, exchange: Ints, part: Ints) -> Columns:
    """New rows with the stage, hop and microbatch of the rows they serve."""
    c = program.columns
    return Columns.of(
        len(of),
        effect=effect,
        stage=c.stage[of],
        hop=c.hop[of],
        microbatch=c.microbatch[of],
        stream=stream,
        exchange=exchange,
        part=part,
    )
