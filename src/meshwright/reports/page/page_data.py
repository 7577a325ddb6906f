"""The data behind the timelines of an HTML page: the columns of each trace, small enough to be inlined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.reports.chart.palette import ODD_MICROBATCH_SHADE, colour, shade
from meshwright.reports.trace.legend import shown_devices
from meshwright.reports.trace.timeline import LANES, IntArray, Timeline

MAX_INSTRUCTIONS = 60_000  # a trace with more is inlined as what runs at each of `SAMPLED_BINS` moments
MAX_DEVICES = 128
SAMPLED_BINS = 4000
TICKS = 10_000_000  # times are whole numbers of this fraction of the picture's extent


def page_data(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """Plain data for JSON: one entry a trace, arrays sorted by device, lane and start; times in `tick` seconds.

    A start is the difference to the one before in its lane; `groups` are (device, lane, from, to); `same` says that
    row numbers of all traces mean the same instruction.
    """
    horizon_s = max((timeline.extent_s for timeline in timelines.values()), default=1.0)
    tick_s = horizon_s / TICKS
    digests = {timeline.program.digest() for timeline in timelines.values()} if len(timelines) > 1 else set()
    return {
        "horizon": horizon_s,
        "tick": tick_s,
        "unit": next((timeline.time_unit for timeline in timelines.values()), "s"),
        "same": len(digests) == 1,
        "traces": [_trace_data(label, timeline, tick_s, horizon_s) for label, timeline in timelines.items()],
    }


def is_sampled(timeline: Timeline) -> bool:
    """Are there more instructions than a page can carry one by one?"""
    return timeline.num_rows > MAX_INSTRUCTIONS


def _trace_data(label: str, timeline: Timeline, tick_s: float, horizon_s: float) -> dict[str, Any]:
    devices = shown_devices(timeline, MAX_DEVICES)
    rows, start_s, end_s, groups = _items(timeline, devices, horizon_s)
    start = np.rint(start_s / tick_s).astype(np.int64)
    steps = np.diff(start, prepend=0)
    first = [low for _, _, low, high in groups if high > low]
    steps[first] = start[first]
    return {
        "label": label,
        "devices": [timeline.devices[device] for device in devices],
        "lanes": list(timeline.lanes),
        "lane_names": [LANES[lane] for lane in timeline.lanes],
        "names": [_name(name, kind) for name, kind in zip(timeline.names, timeline.kinds, strict=True)],
        "streams": list(timeline.streams),
        "groups": groups,
        "row": rows.tolist(),
        "start": steps.tolist(),
        "length": (np.rint(end_s / tick_s).astype(np.int64) - start).tolist(),
        "name": timeline.name[rows].tolist(),
        "microbatch": timeline.microbatch[rows].tolist(),
        "stream": timeline.stream[rows].tolist(),
        "text": [timeline.text(row) for row in rows.tolist()],
    }


def _name(name: str, kind: str) -> list[str]:
    base = colour(name, kind)
    return [name, kind, base, shade(base, ODD_MICROBATCH_SHADE) if kind == "COMPUTE" else base]


def _items(
    timeline: Timeline, devices: list[int], horizon_s: float
) -> tuple[IntArray, np.ndarray[Any, Any], np.ndarray[Any, Any], list[list[int]]]:
    """Rows with their times, lane behind lane, and for each lane (device, lane, from, to)."""
    sampled = is_sampled(timeline)
    bins = max(100, min(SAMPLED_BINS, MAX_INSTRUCTIONS // max(1, len(devices) * len(timeline.lanes))))
    rows, starts, ends, groups = [], [], [], []
    position = 0
    for index, device in enumerate(devices):
        for lane in timeline.lanes:
            if sampled:
                found, start_s, end_s = _sampled(timeline, device, lane, bins, horizon_s)
            else:
                found = timeline.rows(device, lane)
                start_s, end_s = timeline.start_s[found], timeline.end_s[found]
            rows.append(found)
            starts.append(start_s)
            ends.append(end_s)
            groups.append([index, lane, position, position + found.size])
            position += found.size
    if not rows:
        return np.empty(0, np.int64), np.empty(0), np.empty(0), []
    return np.concatenate(rows), np.concatenate(starts), np.concatenate(ends), groups


def _sampled(
    timeline: Timeline, device: int, lane: int, num_bins: int, horizon_s: float
) -> tuple[IntArray, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Runs of bins in which the same instruction runs, with the times of the bins."""
    bins = timeline.sample(device, lane, num_bins, horizon_s)
    edges = np.concatenate(([0], np.flatnonzero(np.diff(bins)) + 1, [num_bins]))
    rows = bins[edges[:-1]]
    kept = rows >= 0
    width_s = horizon_s / num_bins
    return rows[kept], edges[:-1][kept] * width_s, edges[1:][kept] * width_s
