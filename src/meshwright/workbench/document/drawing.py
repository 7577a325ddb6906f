"""drawn_trace: one iteration of a trace as columns: devices that do the same once, and not more rows than can be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.judge.device_group import device_groups
from meshwright.ir.program import Program
from meshwright.ir.timing.wiring import Wiring
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.reports.trace.timeline import (
    LANE_OF_KIND,
    LANES,
    device_labels,
    interned_names,
    microbatches_of,
    running_at,
)
from meshwright.workbench.document.column import Column
from meshwright.workbench.document.critical_path import critical_path
from meshwright.workbench.document.document import DeviceGroup, DrawnLane, DrawnMemory, DrawnTrace
from meshwright.workbench.document.kind import drawn_kinds

MOST_ROWS = 60_000  # of a trace in a file: 18 bytes each, and a third more as text
MOST_LISTS = 256  # devices that are drawn; beyond it an even selection
MOST_MEMORY_POINTS = 2_000  # of the curve of one device
LEAST_BINS = 100  # of a lane where rows are sampled

Rows = NDArray[np.int64]
Times = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _LaneRows:
    """The rows of one lane, with the times at which they are drawn."""

    lane: DrawnLane
    rows: Rows
    start_s: Times
    end_s: Times


def drawn_trace(
    trace: Trace,
    label: str,
    *,
    wiring: Wiring | None = None,
    memory: tuple[MemoryCurve, ...] | None = None,
    cap_bytes: float | None = None,
    most_rows: int = MOST_ROWS,
    iteration: int = -1,
) -> DrawnTrace:
    """One iteration (the last unless given).

    Args:
        wiring: of its program, where the critical path is wanted.
        memory: curves instead of the trace's own.
        cap_bytes: what a device may hold.
        most_rows: where there are more, what runs at evenly spaced moments is drawn.
    """
    program = trace.program
    start_s, end_s = trace.start_s[iteration], trace.end_s[iteration]
    origin_s = float(start_s.min(initial=np.inf)) if start_s.size else 0.0
    span_s = float(end_s.max(initial=origin_s)) - origin_s
    alike = device_groups(trace)
    shown = [alike[place] for place in _evenly(len(alike), MOST_LISTS)]
    names, kinds, name_of_effect = interned_names(program)
    name = np.array(name_of_effect or [0], dtype=np.int64)[program.columns.effect]
    lane_of_name = np.array([LANE_OF_KIND[kind] for kind in kinds] or [0], dtype=np.int64)
    found = [
        each
        for place, lists in enumerate(shown)
        for each in _lanes(program, place, lists[0], lane_of_name[name], start_s, end_s, origin_s)
    ]
    is_sampled = sum(each.rows.size for each in found) > most_rows
    if is_sampled:
        bins = max(LEAST_BINS, most_rows // len(found))
        found = [_sampled(each, bins, span_s or 1.0) for each in found]
    rows = np.concatenate([each.rows for each in found] or [np.empty(0, np.int64)])
    drawn, kind_of_name = drawn_kinds(names, kinds)
    columns = {
        "lane": Column.of_whole(np.repeat(np.arange(len(found)), [each.rows.size for each in found])),
        "start_s": Column.of_seconds(np.concatenate([each.start_s for each in found] or [np.empty(0)])),
        "end_s": Column.of_seconds(np.concatenate([each.end_s for each in found] or [np.empty(0)])),
        "kind": Column.of_whole(np.array(kind_of_name or [0])[name[rows]]),
        "name": Column.of_whole(name[rows]),
        "stage": Column.of_whole(program.columns.stage[rows]),
        "microbatch": Column.of_whole(microbatches_of(program, names, name[rows], program.columns.microbatch[rows])),
    }  # fmt: skip
    if wiring is not None:
        columns["critical"] = _critical(wiring, rows, start_s, end_s)
    return DrawnTrace(
        label, "measured" if trace.is_measured else "simulated", span_s,
        [device_labels(program)[lists[0]] for lists in shown], _groups(program, shown),
        [each.lane for each in found], drawn, names, columns,
        _memory(trace.memory if memory is None else memory, [lists[0] for lists in shown], origin_s, span_s),
        cap_bytes, is_sampled,
    )  # fmt: skip


def _evenly(count: int, most: int) -> list[int]:
    """All numbers below a count, or an even selection of `most` with the first and the last."""
    return sorted({round(place) for place in np.linspace(0, max(0, count - 1), min(count, most))})


def _groups(program: Program, shown: list[tuple[int, ...]]) -> list[DeviceGroup]:
    """What the drawn devices stand for; none where each stands for itself."""
    copies = max(1, program.num_devices // max(1, program.num_lists))
    counts = [copies * len(lists) for lists in shown]
    if all(count == 1 for count in counts):
        return []
    labels = device_labels(program)
    return [
        DeviceGroup(labels[lists[0]], [place], count)
        for place, (lists, count) in enumerate(zip(shown, counts, strict=True))
    ]


def _lanes(
    program: Program, place: int, number: int, lane: Rows, start_s: Times, end_s: Times, origin_s: float
) -> list[_LaneRows]:
    """What one list has in each lane, by start; what takes no time is not drawn."""
    own = np.arange(int(program.offsets[number]), int(program.offsets[number + 1]))
    own = own[end_s[own] > start_s[own]]
    own = own[np.lexsort((start_s[own], lane[own]))]
    ends = np.searchsorted(lane[own], np.arange(len(LANES) + 1))
    return [
        _LaneRows(DrawnLane(place, LANES[each]), rows, start_s[rows] - origin_s, end_s[rows] - origin_s)
        for each in range(len(LANES))
        if (rows := own[ends[each] : ends[each + 1]]).size
    ]


def _sampled(each: _LaneRows, num_bins: int, horizon_s: float) -> _LaneRows:
    """Runs of equal bins in which the same row runs, with the times of the bins; all rows where there are fewer."""
    if each.rows.size <= num_bins:
        return each
    at = running_at(each.start_s, each.end_s, num_bins, horizon_s)
    edges = np.concatenate(([0], np.flatnonzero(np.diff(at)) + 1, [num_bins]))
    found = at[edges[:-1]]
    kept, width_s = found >= 0, horizon_s / num_bins
    return _LaneRows(each.lane, each.rows[found[kept]], edges[:-1][kept] * width_s, edges[1:][kept] * width_s)


def _critical(wiring: Wiring, rows: Rows, start_s: Times, end_s: Times) -> Column:
    """1 for rows of the critical path."""
    is_critical = np.zeros(wiring.program.num_rows, dtype=np.uint8)
    is_critical[critical_path(wiring, start_s, end_s)] = 1
    return Column(is_critical[rows])


def _memory(
    curves: tuple[MemoryCurve, ...], lists: list[int], origin_s: float, span_s: float
) -> list[DrawnMemory]:
    """The curves of the drawn devices inside the iteration; of long ones the highest value of each stretch."""
    place = {number: index for index, number in enumerate(lists)}
    found = []
    for curve in curves:
        if curve.tier == "device" and curve.device in place and len(curve.times_s):
            times = np.asarray(curve.times_s, dtype=np.float64) - origin_s
            first, last = (
                max(0, int(np.searchsorted(times, 0.0, "right")) - 1),
                int(np.searchsorted(times, span_s, "right")),
            )
            times, held = (
                np.maximum(times[first:last], 0.0),
                np.asarray(curve.bytes, dtype=np.float64)[first:last],
            )
            begins = np.unique(
                np.linspace(0, times.size, MOST_MEMORY_POINTS, endpoint=False).astype(np.int64)
            )
            if times.size:
                peaks = np.maximum.reduceat(held, begins)
                found.append(
                    DrawnMemory(
                        place[curve.device], Column.of_seconds(times[begins]), Column.of_seconds(peaks)
                    )
                )
    return found
