"""Rows of two microbatches beside each other: the forward of one and the backward of another take turns at every exchange.

Neighbours of a rank's order of which neither waits for the other become one run of rows: behind computes of one, and what
these send, stand computes of the other. What is sent for one microbatch so runs beside what is computed for another, and
nothing says so. Which neighbours these are is the order's: in a pair both begin when both have come, and end together, so
other stages must not wait for the first of them alone (`Schedule.pairs`).

Where a backward has two halves, a segment's weight gradients stand right behind its input gradients and what these send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Effect
from meshwright.lowering.segment.chain_row import ChainRow
from meshwright.lowering.segment.part_rows import runs
from meshwright.schedules.order import Pairs

Ints = NDArray[np.int64]
BACKWARD = ("B", "I")  # without one of these there is nothing to stand beside: W alone sends nothing


class Neighbour(NamedTuple):
    """Neighbouring computes of one microbatch on one stage of the pipeline, in one direction: its pieces, what runs again
    in front of their backward, and W right behind.

    Attributes:
        begin, end: of its computes, in the program's order.
        is_forward: F; else a backward.
        can_pair: does it hold an F, or the half of a backward that sends?
    """

    begin: int
    end: int
    device: int
    stage: int
    microbatch: int
    is_forward: bool
    can_pair: bool


def neighbours(
    program: Program, pairs: Pairs, stage_of: Sequence[int] = ()
) -> list[tuple[Neighbour, Neighbour]]:
    """Of a program of computes alone, what stands beside each other, each compute in one pair at most. `stage_of`: the stage
    of the pipeline of each of the program's; empty: itself."""
    if not pairs:
        return []
    device = np.repeat(np.arange(program.num_lists), np.diff(program.offsets))
    stages = stage_of or tuple(range(program.tables.num_stages))
    units = list(_units(program.columns, program.tables.effects, device, stages))
    found, place = list[tuple[Neighbour, Neighbour]](), 0
    while place + 1 < len(units):
        first, second = units[place], units[place + 1]
        is_pair = first.device == second.device and _is_pair(first, second, pairs)
        if is_pair:
            found.append((first, second))
        place += 1 + is_pair
    return found


def _is_pair(first: Neighbour, second: Neighbour, pairs: Pairs) -> bool:
    """As the order pairs them: of two directions, or the next forward with the backward in front of it."""
    if not (first.can_pair and second.can_pair) or first.is_forward == second.is_forward:
        return False
    if pairs == "forward first":
        return first.is_forward and first.stage != second.stage
    return second.is_forward and first.microbatch != second.microbatch


def _units(
    columns: Columns, effects: Sequence[Effect], device: Ints, stage_of: Sequence[int]
) -> Iterator[Neighbour]:
    stage = np.array(stage_of)[columns.stage]
    names = np.array([effect.name for effect in effects])[columns.effect]
    is_forward = names == "F"
    keys = np.stack([device, stage, columns.microbatch, is_forward])
    begins = np.flatnonzero(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]))
    can_pair = np.logical_or.reduceat(is_forward | np.isin(names, BACKWARD), begins)
    for begin, end, can in zip(begins.tolist(), [*begins[1:].tolist(), len(names)], can_pair, strict=True):
        own_device, own_stage, microbatch, forward = keys[:, begin].tolist()
        yield Neighbour(begin, end, own_device, own_stage, microbatch, bool(forward), bool(can))


def beside(first: Sequence[ChainRow], second: Sequence[ChainRow]) -> list[int]:
    """The order of the rows of two units one behind the other, by their places: runs of both take turns, those of the one
    that has more spread evenly among the others. Segments are numbered through the pieces of a stage."""
    turns = list[tuple[float, list[int]]]()
    begin = 0
    for rows in (first, second):
        own = list(_turns(rows))
        turns += [((n + 0.5) / len(own), [begin + place for place in run]) for n, run in enumerate(own)]
        begin += len(rows)
    return [place for _, run in sorted(turns, key=lambda turn: turn[0]) for place in run]


def _turns(rows: Sequence[ChainRow]) -> Iterator[list[int]]:
    """Places of the rows of every run; W stands behind the run with the last I of its segment."""
    weights: dict[int, list[int]] = {}
    others, last = list[int](), dict[int, int]()
    for place, row in enumerate(rows):
        if row.effect.name == "W":
            weights.setdefault(row.segment, []).append(place)
        else:
            last |= {row.segment: place} if row.effect.name == "I" else {}
            others.append(place)
    found = list[list[int]]()
    for run in runs([rows[place] for place in others]):
        own, others = others[: len(run)], others[len(run) :]
        ended = [n for n in dict.fromkeys(rows[place].segment for place in own) if last.get(n) in own]
        found.append(own + [place for n in ended for place in weights.pop(n, [])])
    assert not weights, "every W of a unit has its I there"
    yield from found
