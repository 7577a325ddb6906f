"""Rings: value kinds with n slots. The k-th write waits until the readers of write k-n have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.timing.dependency_table import RING, Dependencies
from meshwright.specs.error import ProgramError

Ints = NDArray[Any]


def ring_dependencies(program: Program, deps: Dependencies) -> Dependencies:
    """Add what rings make their writers wait for.

    Raises:
        ProgramError: a reader stands behind the write that displaces the version it reads.
    """
    slots = np.array([kind.ring for kind in program.tables.value_kinds], dtype=np.int64)
    if not slots.any() or not len(deps.code):
        return deps
    writer, kind = deps.writer_of(), deps.space.kind_of(deps.code)
    versions = np.flatnonzero(slots[kind] > 0)
    ring = kind[versions] * program.num_lists + program.list_of_row[writer[versions]]
    order = np.argsort(ring, kind="stable")
    versions = versions[order]
    displaced, lag = _displaced(ring[order], slots[kind[versions]])
    write, other, read_lag = _users(deps, writer, versions[displaced])
    row, distance = writer[versions[write]], lag[write] - read_lag
    # who reads and writes a slot at once does so in place, and waits for nobody
    waits = (other != row) | (distance != 0)
    late = np.flatnonzero(waits & ((distance < 0) | ((distance == 0) & (other > row))))
    if len(late):
        _refuse(program, int(row[late[0]]), int(other[late[0]]), int(kind[versions[write[late[0]]]]))
    return _with_edges(deps, row[waits], other[waits], distance[waits])


def _displaced(ring: Ints, slots: Ints) -> tuple[Ints, Ints]:
    """Of every write, which one it displaces and how many iterations ago that was; `ring` is ascending."""
    _, first, number, writes = np.unique(ring, return_index=True, return_inverse=True, return_counts=True)
    first, writes = first[number], writes[number]
    place = np.arange(len(ring)) - first - slots
    return first + place % writes, -(place // writes)


def _users(deps: Dependencies, writer: Ints, displaced: Ints) -> tuple[Ints, Ints, Ints]:
    """(number of the write, row it waits for, lag of that row's read): the writer of what it displaces, and its readers."""
    reader = np.repeat(np.arange(len(deps.ptr) - 1), np.diff(deps.ptr))
    reads = np.flatnonzero(deps.version >= 0)
    # of every version the writer, and behind it the readers in the order of their rows
    version = np.concatenate([np.arange(len(deps.code)), deps.version[reads]])
    order = np.argsort(version, kind="stable")
    row = np.concatenate([writer, reader[reads]])[order]
    lag = np.concatenate([np.zeros(len(deps.code), dtype=np.int64), deps.lag[reads]])[order]
    counts = np.bincount(version, minlength=len(deps.code))
    first, users = (np.cumsum(counts) - counts)[displaced], counts[displaced]
    write = np.repeat(np.arange(len(displaced)), users)
    user = np.arange(len(write)) - np.repeat(np.cumsum(users) - users - first, users)
    return write, row[user], lag[user]


def _refuse(program: Program, row: int, reader: int, kind: int) -> None:
    raise ProgramError(
        f"{program.text_of(reader)} reads a {program.tables.value_kinds[kind].name} behind {program.text_of(row)}, which "
        f"writes the slot that held it; give the ring more slots or move the reader before the write"
    )


def _with_edges(deps: Dependencies, row: Ints, other: Ints, distance: Ints) -> Dependencies:
    """The tables with more dependencies, each once and marked as an order only (until the other row has ended)."""
    n, longest = len(deps.ptr) - 1, int(distance.max(initial=0)) + 1
    edges = np.sort((row.astype(np.int64) * n + other) * longest + distance)
    edges = edges[np.diff(edges, prepend=-1) > 0]
    pairs, distance = np.divmod(edges, longest)
    row, other = np.divmod(pairs, n)
    more = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))])
    before = np.arange(len(deps.row)) + np.repeat(
        more[:-1], np.diff(deps.ptr)
    )  # where each row's own ones come to stand
    behind = np.arange(len(edges)) + deps.ptr[row + 1]

    def joined(own: Ints, added: Any) -> Ints:
        result = np.empty(len(own) + len(edges), dtype=own.dtype)
        result[before], result[behind] = own, added
        return result

    return replace(
        deps,
        ptr=(deps.ptr + more).astype(np.int32),
        row=joined(deps.row, other),
        lag=joined(deps.lag, distance),
        version=joined(deps.version, RING),
    )
