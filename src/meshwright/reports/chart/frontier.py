"""Span against peak of schedules as one picture: every schedule by its name, and the line of those that none beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from meshwright.reports.chart.drawing import (
    CHARACTER_WIDTH,
    PAPER,
    Plane,
    Theme,
    line,
    mark,
    svg_document,
    text,
)
from meshwright.reports.chart.quantity import axis_ticks, nice_ticks

WIDTH, HEIGHT = 680, 420
LEFT, RIGHT, TOP, BOTTOM = 58.0, 20.0, 40.0, 46.0  # margins in pixels
RADIUS = 5.0
LINE = 13.0  # pixels from one line of text to the next
CAP_GAP = 4.0  # pixels from the line of a cap to its name
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
    ticks = (nice_ticks(frame.x_low, frame.x_high, 7), nice_ticks(frame.y_low, frame.y_high, 6))
    labels = ("peak activations of a device, in full stages", "span, seconds")
    body = frame.axes(axis_ticks(ticks[0]), axis_ticks(ticks[1]), theme, *labels)
    taken = _taken(points, frame)
    body += [*_line(points, frame, theme), *_cap(memory_cap, frame, taken, theme)]
    body += [_mark(point.form, *_at(point, frame), theme, point) for point in ordered]
    body += [*_names(points, frame, taken, theme), *_key(points, theme)]
    return svg_document(body, WIDTH, HEIGHT, "Span against peak activations of schedules", theme, standalone)


def write_frontier_svg(points: Sequence[FrontierPoint], path: Path, memory_cap: float | None = None) -> Path:
    """Write `frontier_svg` to a file and return its path."""
    path.write_text(frontier_svg(points, memory_cap) + "\n", encoding="utf-8")
    return path


def _frame_of(points: Sequence[FrontierPoint], memory_cap: float | None) -> Plane:
    peaks = [point.peak for point in points] + ([] if memory_cap is None else [memory_cap])
    spans = [point.span_s for point in points]
    x_low, x_high = min(peaks, default=0.0), max(peaks, default=1.0)
    y_low, y_high = min(spans, default=0.0), max(spans, default=1.0)
    x_room = 0.1 * (x_high - x_low) or 0.5 * (x_high or 1.0)
    y_room = 0.08 * (y_high - y_low) or 0.1 * (y_high or 1.0)
    place = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    return Plane(*place, max(0.0, x_low - x_room), x_high + x_room, max(0.0, y_low - y_room), y_high + y_room)


def _at(point: FrontierPoint, frame: Plane) -> tuple[float, float]:
    """Where a schedule's mark is, in pixels."""
    return float(frame.x(point.peak)), float(frame.y(point.span_s))


def _cap(memory_cap: float | None, frame: Plane, taken: list[_Box], theme: Theme) -> list[str]:
    """A line down with its name beside it, where neither marks nor the frontier are; adds what they take."""
    if memory_cap is None:
        return []
    x, said = float(frame.x(memory_cap)), f"memory cap {memory_cap:g}"
    wide = CHARACTER_WIDTH * len(said) + CAP_GAP
    places = [
        _Box(left, top, left + wide, top + LINE)
        for top in range(round(TOP), round(HEIGHT - BOTTOM - LINE), round(LINE))
        for left in (x - wide, x)
        if left >= LEFT and left + wide <= WIDTH
    ]
    box = min(places, key=lambda place: sum(place.overlap(each) for each in taken))
    taken += [box, _Box(x - 1, TOP, x + 1, HEIGHT - BOTTOM)]
    at, anchor = (x + CAP_GAP, "start") if box.left == x else (x - CAP_GAP, "end")
    return [
        line(x, TOP, x, HEIGHT - BOTTOM, theme.ink, dash="2 3"),
        text(at, box.top + 9, said, theme.ink, anchor, theme.rim),
    ]


def _corners(points: Sequence[FrontierPoint], frame: Plane) -> list[tuple[float, float]]:
    """The frontier as a staircase, in pixels: the span that can be had with so much memory."""
    marks = sorted({_at(point, frame) for point in points if point.is_on_frontier})
    between = [(x, y) for (_, y), (x, _) in pairwise(marks)]
    return [corner for pair in zip_longest(marks, between) for corner in pair if corner is not None]


def _line(points: Sequence[FrontierPoint], frame: Plane, theme: Theme) -> list[str]:
    corners = _corners(points, frame)
    if len(corners) < 2:
        return []
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    return [f'<path d="{path}" fill="none" stroke="{theme.ink}" stroke-width="1.4"/>']


def _mark(form: Form, x: float, y: float, theme: Theme, point: FrontierPoint | None = None) -> str:
    """A ring, a black square or a larger diamond; beaten ones are paler."""
    is_beaten = point is not None and not point.is_on_frontier
    ink = theme.muted if is_beaten else theme.ink
    hint = point.hint if point is not None else ""
    if form == "searched":
        return mark("square", x, y, (RADIUS + 1) / 2, f'fill="{ink}"', hint)
    if form == "own":
        return mark("diamond", x, y, RADIUS + 2, f'fill="{theme.series[1]}" stroke="{theme.ink}"', hint)
    return mark("circle", x, y, RADIUS, f'fill="{theme.ground}" stroke="{ink}" stroke-width="1.5"', hint)


def _taken(points: Sequence[FrontierPoint], frame: Plane) -> list[_Box]:
    """Where the marks and the frontier are."""
    room = RADIUS + 1
    marks = [_Box(x - room, y - room, x + room, y + room) for x, y in (_at(point, frame) for point in points)]
    steps = pairwise(_corners(points, frame))
    return marks + [
        _Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in steps
    ]


def _names(points: Sequence[FrontierPoint], frame: Plane, taken: list[_Box], theme: Theme) -> list[str]:
    """The name of every mark, where there is room; marks at the same place share one text."""
    shared: dict[tuple[int, int], list[FrontierPoint]] = {}
    for point in points:
        x, y = _at(point, frame)
        shared.setdefault((round(x), round(y)), []).append(point)
    drawn: list[str] = []
    groups = sorted(
        shared.values(), key=lambda group: not any(p.is_on_frontier or p.form == "own" for p in group)
    )
    for group in groups:
        names = ", ".join(dict.fromkeys(point.name for point in group))
        is_first = any(point.is_on_frontier or point.form == "own" for point in group)
        colour = theme.ink if is_first else theme.muted
        drawn += _named(names, *_at(group[0], frame), taken, theme, colour)
    return drawn


def _named(name: str, x: float, y: float, taken: list[_Box], theme: Theme, colour: str) -> list[str]:
    """One name at the nearest free place, with a thin line to its mark where that is far; adds what it takes."""
    wide = CHARACTER_WIDTH * len(name)
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
    drawn = [text(x + across, y + down + 4, name, colour, anchor, theme.rim)]
    if abs(down) > LINE or abs(across) > 2 * LINE:
        near = x + (RADIUS if across > 0 else -RADIUS) * 0.7
        end = x + across - (2 if across > 0 else -2)
        drawn.insert(
            0, line(near, y + (RADIUS * 0.7 if down > 0 else -RADIUS * 0.7), end, y + down, theme.muted)
        )
    return drawn


def _key(points: Sequence[FrontierPoint], theme: Theme) -> list[str]:
    """What the marks mean, of those that are there."""
    words: dict[Form, str] = {"published": "published", "searched": "searched here", "own": "your own"}
    drawn, x, y = [], LEFT + 6, 16.0
    for form, said in words.items():
        if any(point.form == form for point in points):
            drawn += [_mark(form, x, y, theme), text(x + 11, y + 4, said, theme.ink)]
            x += 11 + CHARACTER_WIDTH * len(said) + 24
    if any(point.is_on_frontier for point in points):
        drawn.append(line(x - 6, y, x + 14, y, theme.ink, 1.4))
        drawn.append(text(x + 20, y + 4, "no other is better in both", theme.ink))
    return drawn
