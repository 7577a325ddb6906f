"""Receives posted early or late: how many computes of a device a message may run beside, before the one that reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependencies import dependencies
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.specs.error import ProgramError
from meshwright.specs.option import option

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PlaceReceives:
    """Post every receive ``computes_ahead`` computes before its first reader, and not before: it waits (``after``) for the
    compute that stands before these.

    0: the message runs beside nothing, its buffer lives shortest. 1: where `Transfers` puts it, which lets an in-order host
    run one compute beside it; an asynchronous host posts it as soon as its stream is free, however long before its use, if
    nothing says ``after``. More: a message that takes longer than a compute is hidden, too, and its buffer lives longer. The
    receives from a peer keep the order of its sends, so one that is used later never stands before one that is used
    earlier: an early receive pulls those before it in its stream along. What is received is the same.

    Raises ProgramError for a number below 0, and for receives in batches, which are posted with others.
    """

    computes_ahead: int = option(1, least=0, help="computes of a device that a message may run beside")
    name = "place_receives"
    after = (
        "transfers",
        "optimizer_step",
        "gather_parameters",
        "unshard",
        "whole_gradients",
        "reduced_shards",
    )
    before = ()

    def __call__(self, program: Program) -> Program:
        """The program with its receives in their new places."""
        if self.computes_ahead < 0:
            raise ProgramError(
                f"receives are to be posted {self.computes_ahead} computes ahead; give 0 or more"
            )
        receives = np.flatnonzero(program.kinds == Kind.RECEIVE)
        if program.columns.batch[receives].any():
            raise ProgramError(
                "the program receives in batches, which are posted together; leave this pass out"
            )
        if not len(receives):
            return program
        before, after = self._places(program, receives)
        key = 2 * np.arange(program.num_rows) + 1
        key[receives] = 2 * before
        order = np.argsort(key, kind="stable")
        placed = program.reordered(order, program.offsets)
        new_row = np.empty(program.num_rows, dtype=np.int64)
        new_row[order] = np.arange(program.num_rows)
        waits = after >= 0
        pairs = np.stack([new_row[receives[waits]], new_row[after[waits]]], axis=1)
        written = np.unique(np.concatenate([placed.after, pairs]), axis=0)
        return replace(placed, after=written)

    def made(self, lowering: Lowering) -> Pass:
        """The pass itself."""
        return self

    def _places(self, program: Program, receives: Ints) -> tuple[Ints, Ints]:
        """For every receive the row that it comes to stand before, a compute or an exchange that reads what it brings, and
        the compute that it waits for (-1: none)."""
        computes = np.flatnonzero(program.kinds == Kind.COMPUTE)
        lists = program.list_of_row[receives]
        first = np.searchsorted(computes, program.offsets[lists])  # of the list, among all computes
        last = np.searchsorted(computes, program.offsets[lists + 1])
        readers = _first_readers(program)[receives]
        used = np.searchsorted(computes, readers)
        wanted = np.maximum(used - self.computes_ahead, first)
        wanted = _in_order_of_streams(program, receives, wanted)
        rows = np.append(computes, program.num_rows)
        before = np.where(wanted < last, rows[wanted], program.offsets[lists + 1])
        before = np.where(readers != receives, np.minimum(before, readers), before)
        before = _in_order_of_streams(program, receives, before)
        after = np.where(wanted > first, rows[np.maximum(wanted - 1, 0)], -1)
        return before, after


def _first_readers(program: Program) -> Ints:
    """For every row the first one that reads what it writes in the same iteration; itself where there is none."""
    deps = dependencies(program)
    readers = np.repeat(np.arange(program.num_rows), np.diff(deps.ptr))
    chosen = (deps.lag == 0) & (deps.version >= 0)
    first = np.full(program.num_rows, program.num_rows, dtype=np.int64)
    np.minimum.at(first, deps.row[chosen], readers[chosen])
    return np.where(first < program.num_rows, first, np.arange(program.num_rows))


def _in_order_of_streams(program: Program, receives: Ints, wanted: Ints) -> Ints:
    """The places pulled forward so that those of a stream rise."""
    lane = program.list_of_row[receives] * len(program.tables.streams) + program.columns.stream[receives]
    order = np.lexsort((receives, lane))
    result = wanted.copy()
    for piece in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        result[piece] = np.minimum.accumulate(wanted[piece][::-1])[::-1]
    return result
