"""Devices of a trace that do the same at the same times: of thousands a view shows one for each group."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.stored.equal_list import Ints, columns_of, first_equal, taken
from meshwright.ir.trace import Trace

ROUNDING = 1e-9  # of the trace's span: sums of the same prices in another order differ by less


def device_groups(trace: Trace) -> tuple[tuple[int, ...], ...]:
    """The lists of a trace by groups, each rising, in the order of their first, which stands for its group.

    Those of a group are told the same, row by row (also which stage, and to whom along an axis they send), and post, start
    and end it at the same times up to rounding.
    """
    program = trace.program
    offsets, times = program.offsets, (trace.posted_s, trace.start_s, trace.end_s)
    told = columns_of(program)
    same = first_equal(offsets, [*told, *(row for time in times for row in time)])
    lists = np.unique(same)
    # lists that differ in times by rounding only are joined to the first of them
    kept = taken(offsets, lists)
    sequence = first_equal(kept.offsets, [column[kept.rows] for column in told])
    joined = _joined(kept.offsets, sequence, np.stack([time[:, kept.rows] for time in times]))
    first = lists[joined][np.searchsorted(lists, same)]
    order = np.argsort(first, kind="stable")
    ends = np.flatnonzero(np.diff(first[order], append=-1)) + 1
    members = np.split(order, ends[:-1])
    return tuple(tuple(own.tolist()) for own in members if len(own))


def _joined(offsets: Ints, sequence: Ints, times: NDArray[np.float64]) -> Ints:
    """For every list the first with its sequence whose times are its own up to rounding; ``[kinds, iterations, rows]``."""
    close = ROUNDING * float(np.ptp(times)) if times.size else 0.0
    lengths = np.diff(offsets)
    sums = np.concatenate([[0.0], np.cumsum(times[-1, -1])])
    means = (sums[offsets[1:]] - sums[offsets[:-1]]) / np.maximum(lengths, 1)
    found = np.arange(len(lengths))
    own: dict[
        int, list[tuple[float, int]]
    ] = {}  # by sequence: lists that may still be joined, by their means
    for each in np.lexsort((found, means, sequence)).tolist():
        near = [one for one in own.get(int(sequence[each]), ()) if means[each] - one[0] <= 2 * close]
        for _, other in near:
            if _is_close(offsets, times, each, other, close):
                found[each] = other
                break
        else:
            near.append((float(means[each]), each))
        own[int(sequence[each])] = near
    return _first(found)


def _is_close(offsets: Ints, times: NDArray[Any], one: int, other: int, close: float) -> bool:
    first, second = (times[..., offsets[each] : offsets[each + 1]] for each in (one, other))
    return bool((np.abs(first - second) <= close).all())


def _first(leader: Ints) -> Ints:
    """Of every list the first of those that have its leader."""
    found = np.full(len(leader), len(leader), dtype=np.int64)
    np.minimum.at(found, leader, np.arange(len(leader)))
    return np.asarray(found[leader])
