"""Lines, steps and points as one SVG picture: loss curves, memory curves, frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.reports.chart.quantity import nice_ticks, quantity, tick_texts

FloatArray = NDArray[np.float64]
MAX_POINTS = 1200  # a curve with more points is drawn by its extremes in as many bins
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
FONT_SIZE = 11
CHARACTER_WIDTH = 6.1  # of that font size, on average; only used to leave room
SVG_NAMESPACE = "http://www.w3.org/2000/svg"


@dataclass(frozen=True)
class Theme:
    """Colours of a picture, any that SVG understands (in a page also `var(--name)`)."""

    ink: str = "#16202c"
    muted: str = "#5d6875"
    grid: str = "#dfe4ea"
    background: str = "none"
    series: tuple[str, ...] = ("#2f6fd0", "#d9772b", "#2a9d76", "#b0488f", "#6a5acd", "#7a828c")


PAPER = Theme(background="#ffffff")
PAGE = Theme(
    ink="var(--ink)",
    muted="var(--muted)",
    grid="var(--line)",
    series=("var(--s1)", "var(--s2)", "var(--s3)", "var(--s4)", "var(--s5)", "var(--s6)"),
)


@dataclass(frozen=True)
class Series:
    """One curve or cloud: x and y of equal length; `labels` name single points, `hints` are shown when pointed at;
    `place` chooses its colour."""

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
    """What a picture shows. `levels` are labelled horizontal lines; units are those of `quantity`."""

    series: Sequence[Series]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_unit: str = ""
    y_unit: str = ""
    levels: Sequence[tuple[str, float]] = ()
    y_from_zero: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    width: int = 640
    height: int = 300
    legend: bool = True


def chart_svg(chart: Chart, theme: Theme = PAPER, standalone: bool = True) -> str:
    """The chart as SVG text; `standalone` adds what a file of its own needs (the namespace)."""
    frame = _Frame.of(chart)
    body = [
        *_axes(chart, frame, theme),
        *(line for i, series in enumerate(chart.series) for line in _drawn(series, i, frame, theme)),
        *_levels(chart, frame, theme),
        *_legend(chart, frame, theme),
    ]
    return svg_document(body, chart.width, chart.height, chart.title or _summary(chart), theme, standalone)


def svg_document(
    body: Sequence[str], width: int, height: int, title: str, theme: Theme, standalone: bool
) -> str:
    """SVG text of a drawing of the given size with an accessible title."""
    namespace = f' xmlns="{SVG_NAMESPACE}"' if standalone else ""
    ground = f'<rect width="{width}" height="{height}" fill="{theme.background}"/>' if standalone else ""
    return (
        f'<svg{namespace} viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="{FONT}" font-size="{FONT_SIZE}"><title>{escape(title)}</title>{ground}'
        + "\n".join(body)
        + "</svg>"
    )


@dataclass(frozen=True)
class _Frame:
    """The plotted rectangle in pixels and the data range that it shows."""

    left: float
    top: float
    right: float
    bottom: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]

    @staticmethod
    def of(chart: Chart) -> _Frame:
        x_low, x_high = chart.x_range or _range([np.asarray(s.x, float) for s in chart.series])
        values = [np.asarray(s.y, float) for s in chart.series] + [
            np.array([y for _, y in chart.levels], float)
        ]
        y_low, y_high = chart.y_range or _range([*values, np.zeros(1)] if chart.y_from_zero else values)
        y_ticks = nice_ticks(y_low, y_high, max(2, chart.height // 55))
        if chart.x_range is None and any(series.form == "points" for series in chart.series):
            room = 0.04 * (x_high - x_low)
            x_low, x_high = x_low - room, x_high + room
        if chart.y_range is None:
            room = 0.06 * (y_high - y_low)
            y_low, y_high = (0.0 if chart.y_from_zero and y_low >= 0 else y_low - room), y_high + room
        widest = max((len(text) for text in tick_texts(y_ticks, chart.y_unit)), default=1)
        left = 14 + CHARACTER_WIDTH * widest + (18 if chart.y_label else 0)
        top = 10 + (22 if chart.title else 0) + (20 if chart.legend and len(chart.series) > 1 else 0)
        bottom = chart.height - 26 - (16 if chart.x_label else 0)
        x_ticks = nice_ticks(x_low, x_high, max(2, chart.width // 90))
        return _Frame(
            left, top, chart.width - 16, bottom, x_low, x_high, y_low, y_high, tuple(x_ticks), tuple(y_ticks)
        )

    def x(self, value: FloatArray | float) -> FloatArray:
        return np.asarray(
            self.left + (np.asarray(value) - self.x_low) / (self.x_high - self.x_low) * self.wide
        )

    def y(self, value: FloatArray | float) -> FloatArray:
        return np.asarray(
            self.bottom - (np.asarray(value) - self.y_low) / (self.y_high - self.y_low) * self.tall
        )

    @property
    def wide(self) -> float:
        return self.right - self.left

    @property
    def tall(self) -> float:
        return self.bottom - self.top


def _range(arrays: Sequence[FloatArray]) -> tuple[float, float]:
    values = np.concatenate([a.ravel() for a in arrays]) if arrays else np.empty(0)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))


def _axes(chart: Chart, frame: _Frame, theme: Theme) -> list[str]:
    drawn = []
    if chart.title:
        drawn.append(_text(frame.left, 20, chart.title, theme.ink, size=13, weight=600))
    for tick, label in zip(frame.y_ticks, tick_texts(list(frame.y_ticks), chart.y_unit), strict=True):
        y = float(frame.y(tick))
        drawn.append(_line(frame.left, y, frame.right, y, theme.grid))
        drawn.append(_text(frame.left - 6, y + 4, label, theme.muted, anchor="end"))
    for tick, label in zip(frame.x_ticks, tick_texts(list(frame.x_ticks), chart.x_unit), strict=True):
        drawn.append(_text(float(frame.x(tick)), frame.bottom + 16, label, theme.muted, anchor="middle"))
    drawn.append(_line(frame.left, frame.bottom, frame.right, frame.bottom, theme.muted))
    if chart.x_label:
        drawn.append(
            _text(frame.left + frame.wide / 2, chart.height - 6, chart.x_label, theme.muted, anchor="middle")
        )
    if chart.y_label:
        x, y = 13.0, frame.top + frame.tall / 2
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"'
        drawn.append(_text(x, y, chart.y_label, theme.muted, anchor="middle", extra=turned))
    return drawn


def _drawn(series: Series, index: int, frame: _Frame, theme: Theme) -> list[str]:
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
    series: Series, x: FloatArray, y: FloatArray, frame: _Frame, theme: Theme, colour: str
) -> list[str]:
    labels = [*series.labels, *[""] * (len(x) - len(series.labels))]
    hints = [*series.hints, *labels[len(series.hints) :]]
    drawn = []
    for a, b, label, hint in zip(frame.x(x).tolist(), frame.y(y).tolist(), labels, hints, strict=True):
        if not (np.isfinite(a) and np.isfinite(b)):
            continue
        name = f"<title>{escape(hint)}</title>" if hint else ""
        drawn.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}" fill-opacity="0.85">{name}</circle>'
        )
        if label:
            is_right = a + 9 + CHARACTER_WIDTH * len(label) < frame.right + 12
            drawn.append(
                _text(a + 8 if is_right else a - 8, b + 4, label, theme.ink, "start" if is_right else "end")
            )
    return drawn


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


def _levels(chart: Chart, frame: _Frame, theme: Theme) -> list[str]:
    """Dashed lines with names: the highest named above its line, the others below, so that neighbours stay readable."""
    drawn = []
    for place, (name, value) in enumerate(sorted(chart.levels, key=lambda level: -level[1])):
        y = float(frame.y(value))
        drawn.append(_line(frame.left, y, frame.right, y, theme.muted, dash="3 4"))
        baseline = y - 5 if place == 0 and y - 14 > frame.top else y + 13
        text = f"{name} {quantity(value, chart.y_unit)}"
        drawn.append(_text(frame.right, baseline, text, theme.ink, anchor="end"))
    return drawn


def _legend(chart: Chart, frame: _Frame, theme: Theme) -> list[str]:
    if not chart.legend or len(chart.series) < 2:
        return []
    drawn, x, y = [], frame.left, frame.top - 10
    for index, series in enumerate(chart.series):
        colour = theme.series[(series.place if series.place is not None else index) % len(theme.series)]
        if series.form == "points":
            drawn.append(f'<circle cx="{x + 8:.1f}" cy="{y - 4:.1f}" r="4" fill="{colour}"/>')
        else:
            drawn.append(_line(x, y - 4, x + 16, y - 4, colour, 2.0, "5 4" if series.dashed else ""))
        drawn.append(_text(x + 21, y, series.name, theme.ink))
        x += 21 + CHARACTER_WIDTH * len(series.name) + 18
    return drawn


def _summary(chart: Chart) -> str:
    return ", ".join(series.name for series in chart.series) or "empty chart"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width:g}"{dashes}/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    anchor: str = "start",
    size: int = FONT_SIZE,
    weight: int = 400,
    extra: str = "",
) -> str:
    style = "" if size == FONT_SIZE and weight == 400 else f' font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{style}{extra}>{escape(text)}</text>'
