"""Lines, steps and points as one SVG picture: loss curves, memory curves, frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from meshwright.reports.chart.drawing import (
    CHARACTER_WIDTH,
    PAPER,
    FloatArray,
    Plane,
    Theme,
    line,
    mark,
    svg_document,
    text,
)
from meshwright.reports.chart.quantity import axis_ticks, nice_ticks, quantity, tick_texts

MARK_GAP, MARGIN = 8, 12  # pixels: from a mark to its name, and right of the plot, where names may reach
MAX_POINTS = 1200  # a curve with more points is drawn by its extremes in as many bins


@dataclass(frozen=True)
class Series:
    """One curve or cloud: x and y of equal length; `labels` name single points, `hints` are shown when pointed at;
    `place` chooses its colour. One without a name is not in the legend."""

    name: str
    x: ArrayLike
    y: ArrayLike
    form: Literal["line", "steps", "area", "points"] = "line"
    labels: Sequence[str] = ()
    hints: Sequence[str] = ()
    place: int | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """What a picture shows. `levels` are labelled horizontal lines; units are those of `quantity`. `x_ticks`, `y_ticks`:
    places with their texts, where an axis does not show round numbers of what is drawn (logarithms, names)."""

    series: Sequence[Series]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_unit: str = ""
    y_unit: str = ""
    x_ticks: Sequence[tuple[float, str]] = ()
    y_ticks: Sequence[tuple[float, str]] = ()
    levels: Sequence[tuple[str, float]] = ()
    y_from_zero: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    width: int = 640
    height: int = 300
    legend: bool = True


def chart_svg(chart: Chart, theme: Theme = PAPER, standalone: bool = True) -> str:
    """The chart as SVG text; `standalone` adds what a file of its own needs (the namespace)."""
    x_ticks, y_ticks, frame = _frame_of(chart)
    bold = ' font-size="13" font-weight="600"'
    body = [
        *([text(frame.left, 20, chart.title, theme.ink, extra=bold)] if chart.title else []),
        *frame.axes(
            chart.x_ticks or axis_ticks(x_ticks, chart.x_unit),
            chart.y_ticks or axis_ticks(y_ticks, chart.y_unit),
            theme,
            chart.x_label,
            chart.y_label,
        ),
        *(each for i, series in enumerate(chart.series) for each in _drawn(series, i, frame, theme)),
        *_levels(chart, frame, theme),
        *_legend(chart, frame, theme),
    ]
    title = chart.title or ", ".join(series.name for series in chart.series) or "empty chart"
    return svg_document(body, chart.width, chart.height, title, theme, standalone)


def _frame_of(chart: Chart) -> tuple[list[float], list[float], Plane]:
    """Ticks of both axes, and where what is plotted."""
    x_low, x_high = chart.x_range or _range([np.asarray(s.x, float) for s in chart.series])
    values = [np.asarray(s.y, float) for s in chart.series] + [np.array([y for _, y in chart.levels], float)]
    y_low, y_high = chart.y_range or _range([*values, np.zeros(1)] if chart.y_from_zero else values)
    y_ticks = nice_ticks(y_low, y_high, max(2, chart.height // 55))
    if chart.x_range is None and any(series.form == "points" for series in chart.series):
        room = 0.04 * (x_high - x_low)
        x_low, x_high = x_low - room, x_high + room
    if chart.y_range is None:
        room = 0.06 * (y_high - y_low)
        y_low, y_high = (0.0 if chart.y_from_zero and y_low >= 0 else y_low - room), y_high + room
    y_texts = [name for _, name in chart.y_ticks] or tick_texts(y_ticks, chart.y_unit)
    widest = max(map(len, y_texts), default=1)
    left = 14 + CHARACTER_WIDTH * widest + (18 if chart.y_label else 0)
    top = 10 + (22 if chart.title else 0) + (20 if chart.legend and len(chart.series) > 1 else 0)
    bottom = chart.height - 26 - (16 if chart.x_label else 0)
    x_ticks = nice_ticks(x_low, x_high, max(2, chart.width // 90))
    return x_ticks, y_ticks, Plane(left, top, chart.width - 16, bottom, x_low, x_high, y_low, y_high)


def _range(arrays: Sequence[FloatArray]) -> tuple[float, float]:
    values = np.concatenate([a.ravel() for a in arrays]) if arrays else np.empty(0)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))


def _drawn(series: Series, index: int, frame: Plane, theme: Theme) -> list[str]:
    colour = theme.series[(series.place if series.place is not None else index) % len(theme.series)]
    x, y = np.asarray(series.x, float), np.asarray(series.y, float)
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return []
    if series.form == "points":
        return _points(series, x, y, frame, theme, colour)
    x, y = _thinned(x[finite], y[finite])
    if series.form in ("steps", "area"):
        x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    pixels_x, pixels_y = frame.x(x), frame.y(y)
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(pixels_x, pixels_y, strict=True))
    dash = ' stroke-dasharray="5 4"' if series.dashed else ""
    drawn = [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"{dash}/>'
    ]
    if series.form == "area":
        closed = f"{path}L{pixels_x[-1]:.1f} {frame.bottom:.1f}L{pixels_x[0]:.1f} {frame.bottom:.1f}Z"
        drawn.insert(0, f'<path d="{closed}" fill="{colour}" fill-opacity="0.16" stroke="none"/>')
    return drawn


def _points(
    series: Series, x: FloatArray, y: FloatArray, frame: Plane, theme: Theme, colour: str
) -> list[str]:
    labels = [*series.labels, *[""] * (len(x) - len(series.labels))]
    hints = [*series.hints, *labels[len(series.hints) :]]
    drawn = []
    for a, b, label, hint in zip(frame.x(x).tolist(), frame.y(y).tolist(), labels, hints, strict=True):
        if not (np.isfinite(a) and np.isfinite(b)):
            continue
        drawn.append(mark("circle", a, b, 4, f'fill="{colour}" fill-opacity="0.85"', hint))
        if label:
            drawn.append(_label(label, a, b, frame, theme))
    return drawn


def _label(said: str, x: float, y: float, frame: Plane, theme: Theme) -> str:
    """A point's name, to its right; where that is cut off, above it, so that a line from the left does not strike it through,
    and no further to the left than the plot."""
    end = frame.right + MARGIN
    most = int((end - frame.left) / CHARACTER_WIDTH)
    said = said if len(said) <= most else said[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    wide = CHARACTER_WIDTH * len(said)
    if x + MARK_GAP + wide <= end:
        return text(x + MARK_GAP, y + 4, said, theme.ink, extra=theme.rim)
    return text(
        max(frame.left, min(x - MARK_GAP, end) - wide), y - MARK_GAP, said, theme.ink, extra=theme.rim
    )


def _thinned(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most about `MAX_POINTS` points: of each run of neighbours the lowest, the highest and the last."""
    if x.size <= MAX_POINTS:
        return x, y
    bounds = np.linspace(0, x.size, MAX_POINTS // 3 + 1).astype(int)
    kept: set[int] = {0, x.size - 1}
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        kept |= {low + int(np.argmin(y[low:high])), low + int(np.argmax(y[low:high])), high - 1}
    order = np.array(sorted(kept))
    return x[order], y[order]


def _levels(chart: Chart, frame: Plane, theme: Theme) -> list[str]:
    """Dashed lines with names: the highest named above its line, the others below, so that neighbours stay readable."""
    drawn = []
    for place, (name, value) in enumerate(sorted(chart.levels, key=lambda level: -level[1])):
        y = float(frame.y(value))
        drawn.append(line(frame.left, y, frame.right, y, theme.muted, dash="3 4"))
        baseline = y - 5 if place == 0 and y - 14 > frame.top else y + 13
        said = f"{name} {quantity(value, chart.y_unit)}"
        drawn.append(text(frame.left + 6, baseline, said, theme.ink, extra=theme.rim))
    return drawn


def _legend(chart: Chart, frame: Plane, theme: Theme) -> list[str]:
    if not chart.legend or len(chart.series) < 2:
        return []
    drawn, x, y = [], frame.left, frame.top - 10
    for index, series in enumerate(chart.series):
        if not series.name:
            continue
        colour = theme.series[(series.place if series.place is not None else index) % len(theme.series)]
        if series.form == "points":
            drawn.append(mark("circle", x + 8, y - 4, 4, f'fill="{colour}"'))
        else:
            drawn.append(line(x, y - 4, x + 16, y - 4, colour, 2.0, "5 4" if series.dashed else ""))
        drawn.append(text(x + 21, y, series.name, theme.ink))
        x += 21 + CHARACTER_WIDTH * len(series.name) + 18
    return drawn
