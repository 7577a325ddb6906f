"""A timeline as standalone SVG: vector, generic fonts, no script, ready for a paper or a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.ir.trace import Trace
from meshwright.reports.chart.drawing import (
    CHARACTER_WIDTH,
    PAPER,
    Theme,
    colour_key,
    line,
    rect,
    svg_document,
    text,
)
from meshwright.reports.chart.palette import INK, cell_colour, colour
from meshwright.reports.chart.quantity import axis_ticks, nice_ticks, quantity
from meshwright.reports.trace.legend import shown_devices, timeline_key, trace_facts
from meshwright.reports.trace.timeline import Timeline, read_timeline

ROW_HEIGHT = 20
LANE_HEIGHT = 4
ROW_GAP = 3
MAX_CELLS = 6000  # more instructions than this are drawn as what runs at each pixel
SEPARATOR = " \N{MIDDLE DOT} "
NUMBER_WIDTH = 12  # a cell this wide in pixels shows its microbatch


def timeline_svg(
    traces: Trace | Mapping[str, Trace],
    width: int = 900,
    theme: Theme = PAPER,
    standalone: bool = True,
    max_cells: int = MAX_CELLS,
) -> str:
    """One trace, or several labelled ones under each other on one time scale, as SVG text.

    A trace with more than `max_cells` instructions is drawn as what runs at each pixel.
    """
    labelled = traces if isinstance(traces, Mapping) else {"": traces}
    timelines = {label: read_timeline(trace) for label, trace in labelled.items()}
    names = [name for timeline in timelines.values() for name in timeline.devices]
    left = 10 + CHARACTER_WIDTH * max((len(name) for name in names), default=1) + 6
    horizon_s = max((timeline.extent_s for timeline in timelines.values()), default=1.0)
    area = _Area(left, (width - left - 12) / horizon_s, horizon_s, max_cells)
    body: list[str] = []
    y = 6.0
    for label, timeline in timelines.items():
        facts = (f"{name} {value}" for name, value in trace_facts(labelled[label], timeline).items())
        body.append(text(left, y + 12, SEPARATOR.join([*([label] if label else []), *facts]), theme.ink))
        y = _rows(body, timeline, area, y + 20, theme)
    y = _axis(body, next((timeline.time_unit for timeline in timelines.values()), ""), area, y, theme)
    height = 6 + colour_key(body, timeline_key(list(timelines.values())).items(), left, y, width, theme)
    title = "Timeline of " + (", ".join(label for label in labelled if label) or "one iteration")
    return svg_document(body, width, round(height), title, theme, standalone)


def write_timeline_svg(traces: Trace | Mapping[str, Trace], path: str | Path, width: int = 900) -> Path:
    """Write `timeline_svg` to a file and return its path."""
    target = Path(path)
    target.write_text(timeline_svg(traces, width) + "\n", encoding="utf-8")
    return target


class _Area(NamedTuple):
    """Where time is drawn: x of time zero, pixels per second, seconds shown, and when to sample."""

    left: float
    scale: float
    horizon_s: float
    max_cells: int

    @property
    def right(self) -> float:
        return self.left + self.horizon_s * self.scale


def _rows(body: list[str], timeline: Timeline, area: _Area, y: float, theme: Theme) -> float:
    """Draw the devices of one trace from `y` down; returns the y below them."""
    thin = [lane for lane in timeline.lanes if lane > 0 and _has_length(timeline, lane)]
    for device in shown_devices(timeline):
        body.append(text(area.left - 6, y + 14, timeline.devices[device], theme.ink, "end"))
        body.append(
            rect(area.left, y, area.right - area.left, ROW_HEIGHT, theme.grid, ' fill-opacity="0.55"')
        )
        body += _cells(timeline, device, 0, area, y, ROW_HEIGHT)
        y += ROW_HEIGHT
        for lane in thin:
            body += _cells(timeline, device, lane, area, y + 1, LANE_HEIGHT - 1)
            y += LANE_HEIGHT
        y += ROW_GAP
    hidden = len(timeline.devices) - len(shown_devices(timeline))
    if hidden:
        body.append(text(area.left, y + 10, f"{hidden} more devices, evenly left out", theme.muted))
        y += 16
    return y + 6


def _has_length(timeline: Timeline, lane: int) -> bool:
    rows = timeline.lane == lane
    return bool(np.any(timeline.end_s[rows] > timeline.start_s[rows]))


def _cells(timeline: Timeline, device: int, lane: int, area: _Area, y: float, height: float) -> list[str]:
    if timeline.num_rows > area.max_cells:
        return _sampled_cells(timeline, device, lane, area, y, height)
    drawn = []
    for row in timeline.rows(device, lane).tolist():
        x, end = (area.left + edge[row] * area.scale for edge in (timeline.start_s, timeline.end_s))
        wide = end - x
        if wide <= 0:
            continue
        name, number = int(timeline.name[row]), int(timeline.microbatch[row])
        fill = cell_colour(timeline.names[name], timeline.kinds[name], number)
        edge = ' stroke="#ffffff" stroke-width="0.5"' if lane == 0 and wide > 3 else ""
        drawn.append(rect(x, y, wide, height, fill, edge, _hint(timeline, row)))
        if lane == 0 and number >= 0 and wide >= NUMBER_WIDTH:
            drawn.append(text(x + wide / 2, y + 14, str(number), INK, "middle"))
    return drawn


def _sampled_cells(
    timeline: Timeline, device: int, lane: int, area: _Area, y: float, height: float
) -> list[str]:
    """One rectangle for each run of pixels with the same colour."""
    num_bins = max(1, round(area.horizon_s * area.scale))
    bins = timeline.sample(device, lane, num_bins, area.horizon_s)
    names = np.where(bins >= 0, timeline.name[bins], -1)
    edges = [0, *(np.flatnonzero(np.diff(names)) + 1).tolist(), num_bins]
    return [
        rect(
            area.left + low,
            y,
            high - low,
            height,
            colour(timeline.names[names[low]], timeline.kinds[names[low]]),
        )
        for low, high in zip(edges[:-1], edges[1:], strict=True)
        if names[low] >= 0
    ]


def _hint(timeline: Timeline, row: int) -> str:
    unit = timeline.time_unit
    start, end = float(timeline.start_s[row]), float(timeline.end_s[row])
    return f"{timeline.text(row)}  {quantity(start, unit)} to {quantity(end, unit)}  ({quantity(end - start, unit)})"


def _axis(body: list[str], unit: str, area: _Area, y: float, theme: Theme) -> float:
    ticks = nice_ticks(0.0, area.horizon_s, max(2, int(area.right - area.left) // 110))
    body.append(line(area.left, y, area.right, y, theme.muted))
    for tick, said in axis_ticks(ticks, unit):
        x = area.left + tick * area.scale
        body.append(line(x, y, x, y + 4, theme.muted))
        anchor = "end" if x > area.right - 24 else "middle" if tick else "start"
        body.append(text(x, y + 16, said, theme.muted, anchor))
    return y + 24
