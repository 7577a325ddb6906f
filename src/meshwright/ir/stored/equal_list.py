"""Lists of devices that are equal row by row, and some lists of many: what symmetric devices share is there once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import COLUMN_TYPES, Program

Ints = NDArray[np.int64]
SEED = 1729  # of the multipliers of a hash that only says which lists are compared


def columns_of(program: Program) -> list[NDArray[Any]]:
    """All that rows say, column by column: two lists that are equal in these are told to do the same. What a row waits for
    stands as how far before it that is, a column for each such row."""
    return [*(getattr(program.columns, name) for name in COLUMN_TYPES), *_distances(program)]


def _distances(program: Program) -> list[NDArray[Any]]:
    if not len(program.after):
        return []
    row, earlier = program.after.T
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    place = np.arange(len(row)) - np.repeat(begins, np.diff(np.append(begins, len(row))))
    found = np.zeros((int(place.max()) + 1, program.num_rows), dtype=np.int64)
    found[place, row] = row - earlier
    return list(found)


def first_equal(offsets: Ints, columns: Sequence[NDArray[Any]]) -> Ints:
    """For every list the number of the first that is equal to it in all columns; ``offsets[d]:offsets[d+1]`` are its rows.

    Floats are equal bit by bit. Lists of equal hashes are compared, so that none is taken for another.
    """
    lengths = np.diff(offsets)
    keys = np.stack([lengths, _hashes(offsets, columns).view(np.int64)], axis=1)
    _, first, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    found = first[number.ravel()]
    others = np.flatnonzero(found != np.arange(len(found)))
    own, theirs = (taken(offsets, lists).rows for lists in (others, found[others]))
    differs = np.zeros(len(own), dtype=bool)
    for column in columns:
        differs |= _bits(column)[own] != _bits(column)[theirs]
    wrong = np.unique(np.repeat(others, lengths[others])[differs])
    found[wrong] = wrong
    return np.asarray(found)


def _hashes(offsets: Ints, columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """A number for every list; lists that are equal have equal ones."""
    draw = np.random.default_rng(SEED)
    lengths = np.diff(offsets)
    of_place = draw.integers(1, 1 << 63, int(lengths.max(initial=0)) + 1, dtype=np.uint64)
    total = np.zeros(int(offsets[-1]), dtype=np.uint64)
    for column in columns:
        total += _bits(column).astype(np.uint64) * draw.integers(1, 1 << 63, dtype=np.uint64)
        total ^= total >> np.uint64(29)
    total *= of_place[np.arange(len(total)) - np.repeat(offsets[:-1], lengths)]
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(total, dtype=np.uint64)])
    return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]])


def _bits(column: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(column).view(np.uint64) if column.dtype == np.float64 else column


class Taken(NamedTuple):
    """Some lists, one behind the other: the rows they had, where each begins now, and what waits for what there."""

    rows: Ints
    offsets: Ints
    after: Ints


def taken(offsets: Ints, lists: Ints, after: Ints | None = None) -> Taken:
    """These lists in this order, one as often as it is named; `after` are pairs of rows, sorted."""
    rows, begins = _runs(offsets, lists)
    if after is None or not len(after):
        return Taken(rows, begins, np.empty((0, 2), dtype=np.int64))
    pairs, ends = _runs(np.searchsorted(after[:, 0], offsets), lists)
    shift = np.repeat(begins[:-1] - offsets[lists], np.diff(ends))
    return Taken(rows, begins, after[pairs] + shift[:, None])


def _runs(offsets: Ints, lists: Ints) -> tuple[Ints, Ints]:
    lengths = np.diff(offsets)[lists]
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.arange(begins[-1]) + np.repeat(offsets[lists] - begins[:-1], lengths), begins
