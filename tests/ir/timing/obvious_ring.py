"""The ring rule in obvious Python: the k-th write into n slots waits until the readers of write k-n have ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.timing.dependency_table import RING, Dependencies
from meshwright.specs.error import ProgramError

Edge = tuple[int, int, int]  # (waiting row, row waited for, lag in iterations)


def ring_dependencies(program: Program, deps: Dependencies) -> Dependencies:
    """Add what rings make their writers wait for.

    Raises:
        ProgramError: a reader stands behind the write that displaces the version it reads.
    """
    rings = {k: kind for k, kind in enumerate(program.tables.value_kinds) if kind.ring > 0}
    if not rings or not len(deps.code):
        return deps
    writer = deps.writer_of()
    kind_of_version = deps.space.kind_of(deps.code)
    list_of_version = program.list_of_row[writer]
    readers = _readers(deps, np.isin(kind_of_version, list(rings)))
    edges: list[Edge] = []
    for k, kind in rings.items():
        for device in range(program.num_lists):
            versions = np.flatnonzero((kind_of_version == k) & (list_of_version == device)).tolist()
            for place in range(len(versions)):
                displaced, lag = _displaced(place, kind.ring, len(versions))
                waits = [(int(writer[versions[displaced]]), 0), *readers.get(versions[displaced], [])]
                edges.extend(_edges(program, kind.name, int(writer[versions[place]]), waits, lag))
    return _with_edges(deps, edges)


def _displaced(place: int, slots: int, writes: int) -> tuple[int, int]:
    """Which write of an iteration the write at ``place`` displaces, and how many iterations ago that was."""
    lag = 0
    while place - slots < 0:
        place += writes
        lag += 1
    return place - slots, lag


def _readers(deps: Dependencies, in_ring: np.ndarray) -> dict[int, list[tuple[int, int]]]:
    """For every version in a ring: (reading row, lag of the read)."""
    result: dict[int, list[tuple[int, int]]] = {}
    reader = np.repeat(np.arange(len(deps.ptr) - 1), np.diff(deps.ptr))
    chosen = np.flatnonzero(deps.version >= 0)
    chosen = chosen[in_ring[deps.version[chosen]]]
    for k in chosen.tolist():
        result.setdefault(int(deps.version[k]), []).append((int(reader[k]), int(deps.lag[k])))
    return result


def _edges(program: Program, name: str, row: int, waits: list[tuple[int, int]], lag: int) -> list[Edge]:
    """Edges of one write: it waits for the writer and the readers of the version that it displaces."""
    edges = []
    for other, read_lag in waits:
        distance = lag - read_lag
        if other == row and distance == 0:  # reads and writes the slot at once: in place
            continue
        if distance < 0 or (distance == 0 and other > row):
            raise ProgramError(
                f"{program.text_of(other)} reads a {name} behind {program.text_of(row)}, which writes the slot that "
                f"held it; give the ring more slots or move the reader before the write"
            )
        edges.append((row, other, distance))
    return edges


def _with_edges(deps: Dependencies, edges: list[Edge]) -> Dependencies:
    """The tables with more dependencies, each marked as an order only (until the other row has ended)."""
    more = np.array(sorted(set(edges)), dtype=np.int64).reshape(-1, 3)
    owner = np.concatenate([np.repeat(np.arange(len(deps.ptr) - 1), np.diff(deps.ptr)), more[:, 0]])
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(deps.ptr) - 1)
    return replace(
        deps,
        ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        row=np.concatenate([deps.row, more[:, 1].astype(np.int32)])[order],
        lag=np.concatenate([deps.lag, more[:, 2].astype(np.int16)])[order],
        version=np.concatenate([deps.version, np.full(len(more), RING, dtype=np.int32)])[order],
    )
