"""drawn_trace: one iteration of a trace as columns: devices that do the same once, and not more rows than can be drawn."""

from __future__ import annotations

from collections.abc import Sequence

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
from meshwright.workbench.document.document import DeviceGroup, DrawnLane, DrawnMemory, DrawnTrace
from meshwright.workbench.document.drawn.critical_path import critical_path
from meshwright.workbench.document.drawn.kind import drawn_kinds

MOST_ROWS = 60_000  # of a trace in a file: 18 bytes each, and a third more as text
MOST_LISTS = 256  # devices that are drawn; beyond it an even selection
MOST_MEMORY_POINTS = 2_000  # of the curve of one device
LEAST_BINS = 100  # of a lane where rows are sampled

Rows = NDArray[np.int64]
Times = NDArray[np.float64]


def drawn_trace(
    trace: Trace,
    label: str,
    *,
    wiring: Wiring | None = None,
    memory: tuple[MemoryCurve, ...] | None = None,
    cap_bytes: float | None = None,
    most_rows: int = MOST_ROWS,
    iteration: int = -1,
    lists: tuple[int, ...] | None = None,
    stages: Sequence[int] | None = None,
) -> DrawnTrace:
    """One iteration (the last unless given).

    Args:
        wiring: of its program, where the critical path is wanted.
        memory: curves instead of the trace's own.
        cap_bytes: what a device may hold.
        most_rows: where there are more, what runs at evenly spaced moments is drawn.
        lists: those of the program that are drawn; None: all.
        stages: of every stage of the program the stage that people know; None: itself.
    """
    program = trace.program
    start_s, end_s = trace.start_s[iteration], trace.end_s[iteration]
    origin_s = float(start_s.min(initial=np.inf)) if start_s.size else 0.0
    span_s = float(end_s.max(initial=origin_s)) - origin_s
    alike = [each for each in device_groups(trace) if lists is None or each[0] in lists]
    shown = [alike[place] for place in _evenly(len(alike), MOST_LISTS)]
    names, kinds, name_of_effect = interned_names(program)
    name = np.array(name_of_effect or [0], dtype=np.int64)[program.columns.effect]
    lane_of_name = np.array([LANE_OF_KIND[kind] for kind in kinds] or [0], dtype=np.int64)
    rows, lane_of_row, lanes = _by_lane(
        program, [each[0] for each in shown], lane_of_name[name], start_s, end_s
    )
    row_start_s, row_end_s = start_s[rows] - origin_s, end_s[rows] - origin_s
    is_sampled = rows.size > most_rows
    if is_sampled:
        bins = max(LEAST_BINS, most_rows // len(lanes))
        kept, row_start_s, row_end_s = _sampled(lane_of_row, row_start_s, row_end_s, bins, span_s or 1.0)
        rows, lane_of_row = rows[kept], lane_of_row[kept]
    labels = device_labels(program)
    drawn, kind_of_name = drawn_kinds(names, kinds)
    columns = {
        "lane": Column.of_whole(lane_of_row),
        "start_s": Column.of_seconds(row_start_s),
        "end_s": Column.of_seconds(row_end_s),
        "kind": Column.of_whole(np.array(kind_of_name or [0])[name[rows]]),
        "name": Column.of_whole(name[rows]),
        "stage": Column.of_whole(_stage_of_row(program, stages)[rows]),
        "microbatch": Column.of_whole(microbatches_of(program, names, name[rows], program.columns.microbatch[rows])),
    }  # fmt: skip
    if wiring is not None:
        columns["critical"] = _critical(wiring, rows, start_s, end_s)
    return DrawnTrace(
        label, "measured" if trace.is_measured else "simulated", span_s,
        [labels[lists[0]] for lists in shown], _groups(program, shown, labels),
        lanes, drawn, names, columns,
        _memory(trace.memory if memory is None else memory, [lists[0] for lists in shown], origin_s, span_s),
        cap_bytes, is_sampled,
    )  # fmt: skip


def _stage_of_row(program: Program, stages: Sequence[int] | None) -> Rows:
    """The stage that people know of every row."""
    own = program.columns.stage.astype(np.int64)
    return own if stages is None else np.array(stages, dtype=np.int64)[own]


def _evenly(count: int, most: int) -> list[int]:
    """All numbers below a count, or an even selection of `most` with the first and the last."""
    return sorted({round(place) for place in np.linspace(0, max(0, count - 1), min(count, most))})


def _groups(program: Program, shown: list[tuple[int, ...]], labels: tuple[str, ...]) -> list[DeviceGroup]:
    """What the drawn devices stand for; none where each stands for itself."""
    copies = max(1, program.num_devices // max(1, program.num_lists))
    counts = [copies * len(lists) for lists in shown]
    if all(count == 1 for count in counts):
        return []
    return [
        DeviceGroup(labels[lists[0]], [place], count)
        for place, (lists, count) in enumerate(zip(shown, counts, strict=True))
    ]


def _by_lane(
    program: Program, lists: list[int], lane: Rows, start_s: Times, end_s: Times
) -> tuple[Rows, Rows, list[DrawnLane]]:
    """Rows of these lists by lane and start, the number of each one's lane, and the lanes; what takes no time is left out."""
    ranges = [np.arange(int(program.offsets[each]), int(program.offsets[each + 1])) for each in lists]
    rows = np.concatenate(ranges or [np.empty(0, np.int64)])
    key = np.repeat(np.arange(len(ranges)), [each.size for each in ranges]) * len(LANES) + lane[rows]
    takes_time = end_s[rows] > start_s[rows]
    rows, key = rows[takes_time], key[takes_time]
    order = np.lexsort((start_s[rows], key))
    used, number = np.unique(key[order], return_inverse=True)
    lanes = [DrawnLane(each // len(LANES), LANES[each % len(LANES)]) for each in used.tolist()]
    return rows[order], number, lanes


def _sampled(
    lane: Rows, start_s: Times, end_s: Times, num_bins: int, horizon_s: float
) -> tuple[Rows, Times, Times]:
    """Of each lane the runs of equal bins in which the same row runs: places of the rows, and the times of the bins; all of
    a lane that has fewer rows."""
    edges = np.searchsorted(lane, np.arange(int(lane.max(initial=-1)) + 2))
    width_s = horizon_s / num_bins
    places, begins, ends = [], [], []
    for first, last in zip(edges, edges[1:]):
        own = slice(int(first), int(last))
        if last - first <= num_bins:
            places.append(np.arange(first, last))
            begins.append(start_s[own])
            ends.append(end_s[own])
            continue
        at = running_at(start_s[own], end_s[own], num_bins, horizon_s)
        changes = np.concatenate(([0], np.flatnonzero(np.diff(at)) + 1, [num_bins]))
        runs = at[changes[:-1]] >= 0
        places.append(first + at[changes[:-1]][runs])
        begins.append(changes[:-1][runs] * width_s)
        ends.append(changes[1:][runs] * width_s)
    return np.concatenate(places), np.concatenate(begins), np.concatenate(ends)


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
