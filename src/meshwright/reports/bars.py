"""Shares of a whole as stacked bars: where the time of a step goes, plan by plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from meshwright.reports.chart import CHARACTER_WIDTH, PAPER, Theme, svg_document
from meshwright.reports.palette import INK
from meshwright.reports.quantity import quantity

BAR_HEIGHT, BAR_GAP, TOP = 24, 10, 8
KEY_HEIGHT, SQUARE = 18, 11
FILLS = (
    "#5b8fd9", "#e09a52", "#58b394", "#c97bb0", "#9186d8", "#e8cf5a", "#ef8f7d", "#7fd0e0", "#a8cf6a", "#c3c9d1",
)  # fmt: skip
LEAST_TEXT = 34  # pixels: narrower parts show no number


def bars_svg(
    bars: Mapping[str, Mapping[str, float]],
    unit: str = "s",
    width: int = 860,
    theme: Theme = PAPER,
    title: str = "",
    standalone: bool = True,
) -> str:
    """One bar of equal length for each of `bars`: its parts by name, as shares of their sum, in a common order of colours.

    Args:
        bars: label -> {part: value}; values in `unit`, from 0.
        unit: as of `quantity`; the sum stands behind the bar, every part's value in its hint.
    """
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    left = 14 + CHARACTER_WIDTH * max((len(label) for label in bars), default=1)
    right = width - 14 - CHARACTER_WIDTH * 9
    body: list[str] = []
    y: float = TOP
    for label, parts in bars.items():
        total = sum(parts.values())
        body.append(_text(left - 8, y + 16, label, theme.ink, "end"))
        body += _parts(parts, names, unit, (left, right, y))
        body.append(_text(right + 8, y + 16, quantity(total, unit), theme.ink))
        y += BAR_HEIGHT + BAR_GAP
    y = _key(body, names, (left, float(width), y), theme)
    return svg_document(body, width, round(y), title or ", ".join(bars), theme, standalone)


def _parts(
    parts: Mapping[str, float], names: Sequence[str], unit: str, frame: tuple[float, float, float]
) -> list[str]:
    """Rectangles of one bar from `left` to `right` at `y`, with their share in per cent where it fits."""
    left, right, y = frame
    total, x, drawn = sum(parts.values()) or 1.0, left, []
    for place, name in enumerate(names):
        share = parts.get(name, 0.0) / total
        wide = share * (right - left)
        if wide <= 0:
            continue
        hint = escape(f"{name}: {quantity(parts[name], unit)}, {100 * share:.1f} %")
        drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{BAR_HEIGHT}" fill="{_fill(place)}">'
            f"<title>{hint}</title></rect>"
        )
        if wide >= LEAST_TEXT:
            drawn.append(_text(x + wide / 2, y + 16, f"{100 * share:.0f} %", INK, "middle"))
        x += wide
    return drawn


def _key(body: list[str], names: Sequence[str], frame: tuple[float, float, float], theme: Theme) -> float:
    """Coloured squares with names from `y` down; returns the height of the picture."""
    left, width, y = frame
    x = left
    for place, name in enumerate(names):
        wide = SQUARE + 5 + CHARACTER_WIDTH * len(name) + 16
        if x + wide > width and x > left:
            x, y = left, y + KEY_HEIGHT
        body.append(
            f'<rect x="{x:.1f}" y="{y + 2:.1f}" width="{SQUARE}" height="{SQUARE}" fill="{_fill(place)}"/>'
        )
        body.append(_text(x + SQUARE + 5, y + 12, name, theme.ink))
        x += wide
    return y + KEY_HEIGHT + 4


def _fill(place: int) -> str:
    return FILLS[place % len(FILLS)]


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
