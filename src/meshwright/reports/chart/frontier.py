"""Span against peak of schedules as one picture: every schedule by its name, and the line of those that none beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from meshwright.reports.chart.chart import CHARACTER_WIDTH, PAPER, Theme, svg_document
from meshwright.reports.chart.quantity import nice_ticks, tick_texts

WIDTH, HEIGHT = 680, 420
LEFT, RIGHT, TOP, BOTTOM = 58.0, 20.0, 40.0, 46.0  # margins in pixels
RADIUS = 5.0
LINE = 13.0  # pixels from one line of text to the next
# Where a name may stand from its mark, the nearest first: pixels to the right, pixels down.
PLACES = [
    (side * across, down)
    for across, downs in ((9.0, (0.0, -11.0, 12.0)), (16.0, (-22.0, 23.0, -34.0, 35.0)), (30.0, (-46.0, 47.0, 0.0)),
                          (44.0, (-60.0, 61.0, -74.0, 75.0, -20.0, 20.0)))
    for down in downs
    for side in (1, -1)
]  # fmt: skip
Form = Literal["published", "searched", "own"]
DRAWN: tuple[Form, ...] = ("own", "published", "searched")


@dataclass(frozen=True)
class FrontierPoint:
    """One schedule: its peak in full-stage activations and span in seconds; ``form`` chooses the mark."""

    name: str
    peak: float
    span_s: float
    form: Form = "published"
    is_on_frontier: bool = False
    hint: str = ""


class _Box(NamedTuple):
    """A rectangle that is taken: left, top, right, bottom in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: _Box) -> float:
        """Pixels of area that both have."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, tall)


class _PlotRange(NamedTuple):
    """Data ranges of the plotted rectangle."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return HEIGHT - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


def frontier_svg(
    points: Sequence[FrontierPoint],
    memory_cap: float | None = None,
    theme: Theme = PAPER,
    standalone: bool = True,
) -> str:
    """Peak to the right, span upwards: the lower left is better. Marks differ in shape, so that it can be read in grey.

    ``memory_cap``: activations of full stages that a device may keep, drawn as a line.
    """
    frame = _frame_of(points, memory_cap)
    # the frontier lies on top; of marks at one place the smaller ones do
    ordered = sorted(points, key=lambda point: (point.is_on_frontier, DRAWN.index(point.form)))
    body = [*_axes(frame, theme), *_cap(memory_cap, frame, theme), *_line(points, frame, theme)]
    body += [_mark(point.form, frame.x(point.peak), frame.y(point.span_s), theme, point) for point in ordered]
    body += [*_names(points, memory_cap, frame, theme), *_key(points, theme)]
    return svg_document(body, WIDTH, HEIGHT, "Span against peak activations of schedules", theme, standalone)


def write_frontier_svg(points: Sequence[FrontierPoint], path: Path, memory_cap: float | None = None) -> Path:
    """Write `frontier_svg` to a file and return its path."""
    path.write_text(frontier_svg(points, memory_cap) + "\n", encoding="utf-8")
    return path


def _frame_of(points: Sequence[FrontierPoint], memory_cap: float | None) -> _PlotRange:
    peaks = [point.peak for point in points] + ([] if memory_cap is None else [memory_cap])
    spans = [point.span_s for point in points]
    x_low, x_high = min(peaks, default=0.0), max(peaks, default=1.0)
    y_low, y_high = min(spans, default=0.0), max(spans, default=1.0)
    x_room = 0.1 * (x_high - x_low) or 0.5 * (x_high or 1.0)
    y_room = 0.08 * (y_high - y_low) or 0.1 * (y_high or 1.0)
    return _PlotRange(max(0.0, x_low - x_room), x_high + x_room, max(0.0, y_low - y_room), y_high + y_room)


def _axes(frame: _PlotRange, theme: Theme) -> list[str]:
    """Ticks, faint lines and what is on each axis."""
    bottom, drawn = HEIGHT - BOTTOM, []
    ticks = nice_ticks(frame.y_low, frame.y_high, 6)
    for tick, text in zip(ticks, tick_texts(ticks, ""), strict=True):
        y = frame.y(tick)
        drawn.append(_rule(LEFT, y, WIDTH - RIGHT, y, theme.grid))
        drawn.append(_text(LEFT - 7, y + 4, text, theme.muted, "end"))
    ticks = nice_ticks(frame.x_low, frame.x_high, 7)
    for tick, text in zip(ticks, tick_texts(ticks, ""), strict=True):
        x = frame.x(tick)
        drawn.append(_rule(x, bottom, x, bottom + 4, theme.muted))
        drawn.append(_text(x, bottom + 17, text, theme.muted, "middle"))
    drawn.append(_rule(LEFT, bottom, WIDTH - RIGHT, bottom, theme.muted))
    across = LEFT + (WIDTH - LEFT - RIGHT) / 2
    drawn.append(
        _text(across, HEIGHT - 9, "peak activations of a device, in full stages", theme.ink, "middle")
    )
    x, y = 14.0, TOP + (bottom - TOP) / 2
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"'
    return [*drawn, _text(x, y, "span, seconds", theme.ink, "middle", turned)]


def _cap(memory_cap: float | None, frame: _PlotRange, theme: Theme) -> list[str]:
    if memory_cap is None:
        return []
    x = frame.x(memory_cap)
    line = _rule(x, TOP, x, HEIGHT - BOTTOM, theme.ink, ' stroke-dasharray="2 3"')
    return [line, _text(x - 4, TOP + 9, f"memory cap {memory_cap:g}", theme.ink, "end")]


def _corners(points: Sequence[FrontierPoint], frame: _PlotRange) -> list[tuple[float, float]]:
    """The frontier as a staircase, in pixels: the span that can be had with so much memory."""
    front = sorted({(point.peak, point.span_s) for point in points if point.is_on_frontier})
    marks = [(frame.x(peak), frame.y(span)) for peak, span in front]
    between = [(x, y) for (_, y), (x, _) in pairwise(marks)]
    return [corner for pair in zip_longest(marks, between) for corner in pair if corner is not None]


def _line(points: Sequence[FrontierPoint], frame: _PlotRange, theme: Theme) -> list[str]:
    corners = _corners(points, frame)
    if len(corners) < 2:
        return []
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    return [f'<path d="{path}" fill="none" stroke="{theme.ink}" stroke-width="1.4"/>']


def _mark(form: Form, x: float, y: float, theme: Theme, point: FrontierPoint | None = None) -> str:
    """A ring, a black square or a larger diamond; beaten ones are paler."""
    is_beaten = point is not None and not point.is_on_frontier
    ink = theme.muted if is_beaten else theme.ink
    ground = theme.background if theme.background != "none" else "var(--ground)"
    hint = f"<title>{escape(point.hint)}</title>" if point is not None and point.hint else ""
    if form == "searched":
        side = RADIUS + 1
        shape = f'rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:g}" height="{side:g}" fill="{ink}"'
        return f"<{shape}>{hint}</rect>"
    if form == "own":
        r = RADIUS + 2
        path = f"M{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}L{x - r:.1f} {y:.1f}Z"
        fill = theme.series[1]
        return f'<path d="{path}" fill="{fill}" stroke="{theme.ink}" stroke-width="1.2">{hint}</path>'
    circle = (
        f'circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS:g}" fill="{ground}" stroke="{ink}" stroke-width="1.5"'
    )
    return f"<{circle}>{hint}</circle>"


def _names(
    points: Sequence[FrontierPoint], memory_cap: float | None, frame: _PlotRange, theme: Theme
) -> list[str]:
    """The name of every mark, where there is room; marks at the same place share one text."""
    shared: dict[tuple[str, str], list[FrontierPoint]] = {}
    for point in points:
        place = (f"{frame.x(point.peak):.0f}", f"{frame.y(point.span_s):.0f}")
        shared.setdefault(place, []).append(point)
    taken = [_around(frame.x(point.peak), frame.y(point.span_s), RADIUS + 1) for point in points]
    steps = pairwise(_corners(points, frame))
    taken += [_Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in steps]
    if memory_cap is not None:
        x = frame.x(memory_cap)
        taken += [_Box(x - 1, TOP, x + 1, HEIGHT - BOTTOM), _Box(x - 95, TOP - 2, x, TOP + 12)]
    drawn: list[str] = []
    groups = sorted(
        shared.values(), key=lambda group: not any(p.is_on_frontier or p.form == "own" for p in group)
    )
    for group in groups:
        x, y = frame.x(group[0].peak), frame.y(group[0].span_s)
        text = ", ".join(dict.fromkeys(point.name for point in group))
        is_first = any(point.is_on_frontier or point.form == "own" for point in group)
        drawn += _named(text, x, y, taken, theme, theme.ink if is_first else theme.muted)
    return drawn


def _named(text: str, x: float, y: float, taken: list[_Box], theme: Theme, colour: str) -> list[str]:
    """One name at the nearest free place, with a thin line to its mark where that is far; adds what it takes."""
    wide = CHARACTER_WIDTH * len(text)
    best: tuple[float, float, float, _Box] | None = None
    for across, down in PLACES:
        left = x + across if across > 0 else x + across - wide
        box = _Box(left, y + down - LINE / 2, left + wide, y + down + LINE / 2)
        outside = max(0.0, LEFT - box.left) + max(0.0, box.right - WIDTH + 2) + max(0.0, TOP - 6 - box.top)
        outside += max(0.0, box.bottom - HEIGHT + BOTTOM)
        cost = sum(box.overlap(other) for other in taken) + 100 * outside
        if best is None or cost < best[0]:
            best = (cost, across, down, box)
        if cost == 0:
            break
    assert best is not None, "there are places"
    _, across, down, box = best
    taken.append(box)
    anchor = "start" if across > 0 else "end"
    drawn = [_text(x + across, y + down + 4, text, colour, anchor)]
    if abs(down) > LINE or abs(across) > 2 * LINE:
        near = x + (RADIUS if across > 0 else -RADIUS) * 0.7
        end = x + across - (2 if across > 0 else -2)
        drawn.insert(
            0, _rule(near, y + (RADIUS * 0.7 if down > 0 else -RADIUS * 0.7), end, y + down, theme.muted)
        )
    return drawn


def _around(x: float, y: float, radius: float) -> _Box:
    return _Box(x - radius, y - radius, x + radius, y + radius)


def _key(points: Sequence[FrontierPoint], theme: Theme) -> list[str]:
    """What the marks mean, of those that are there."""
    words: dict[Form, str] = {"published": "published", "searched": "searched here", "own": "your own"}
    drawn, x, y = [], LEFT + 6, 16.0
    for form, text in words.items():
        if any(point.form == form for point in points):
            drawn += [_mark(form, x, y, theme), _text(x + 11, y + 4, text, theme.ink)]
            x += 11 + CHARACTER_WIDTH * len(text) + 24
    if any(point.is_on_frontier for point in points):
        drawn.append(_rule(x - 6, y, x + 14, y, theme.ink, ' stroke-width="1.4"'))
        drawn.append(_text(x + 20, y + 4, "no other is better in both", theme.ink))
    return drawn


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", extra: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'
    )
