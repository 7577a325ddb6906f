"""Shares of a whole as stacked bars: where the time of a step goes, plan by plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from meshwright.reports.chart.chart import CHARACTER_WIDTH, FONT_SIZE, PAPER, Theme, svg_document
from meshwright.reports.chart.palette import INK
from meshwright.reports.chart.quantity import quantity

BAR_HEIGHT, BAR_GAP, TOP = 24, 10, 8
KEY_HEIGHT, SQUARE = 18, 11
FILLS = (
    "#5b8fd9", "#e09a52", "#58b394", "#c97bb0", "#9186d8", "#e8cf5a", "#ef8f7d", "#7fd0e0", "#a8cf6a", "#c3c9d1",
)  # fmt: skip
LEAST_TEXT = 34  # pixels: narrower parts show no number
LEAST_QUANTITY = 54  # the same of a number with its unit
THIN_HEIGHT, THIN_GAP, MANY = 12, 4, 16  # more bars than this are thin and show no numbers in their parts
LEVEL_HEIGHT = 16  # room above the bars for the name of a level


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


def scaled_bars_svg(
    bars: Mapping[str, Mapping[str, float]],
    unit: str = "s",
    width: int = 860,
    theme: Theme = PAPER,
    title: str = "",
    standalone: bool = True,
    level: tuple[str, float] | None = None,
) -> str:
    """The same with one scale for all bars: a bar is as long as its sum. Many bars are thin.

    Args:
        level: name and value of a line across all bars, such as what a device has.
    """
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    left = 14 + CHARACTER_WIDTH * max((len(label) for label in bars), default=1)
    right = width - 14 - CHARACTER_WIDTH * 9
    totals = [sum(parts.values()) for parts in bars.values()]
    scale = (right - left) / (max([*totals, *([level[1]] if level else [])], default=0.0) or 1.0)
    is_thin = len(bars) > MANY
    tall, gap, size = (THIN_HEIGHT, THIN_GAP, 9) if is_thin else (BAR_HEIGHT, BAR_GAP, FONT_SIZE)
    body: list[str] = []
    y: float = TOP + (LEVEL_HEIGHT if level else 0)
    top = y
    for (label, parts), total in zip(bars.items(), totals, strict=True):
        middle = y + tall / 2 + size / 3
        body.append(_text(left - 8, middle, label, theme.ink, "end", size))
        body += _scaled_parts(parts, names, unit, (left, scale, y, tall))
        body.append(_text(left + total * scale + 8, middle, quantity(total, unit), theme.ink, size=size))
        y += tall + gap
    body += _level(level, unit, (left, scale, top, y), theme) if level else []
    y = _key(body, names, (left, float(width), y), theme)
    return svg_document(body, width, round(y), title or ", ".join(bars), theme, standalone)


def _scaled_parts(
    parts: Mapping[str, float],
    names: Sequence[str],
    unit: str,
    frame: tuple[float, float, float, float],
) -> list[str]:
    """Rectangles of one bar from `left` at `y`, `scale` pixels a unit, with their numbers where they fit."""
    left, scale, y, tall = frame
    x, drawn, total = left, [], sum(parts.values()) or 1.0
    for place, name in enumerate(names):
        value = parts.get(name, 0.0)
        wide = value * scale
        if wide <= 0:
            continue
        hint = escape(f"{name}: {quantity(value, unit)}, {100 * value / total:.1f} %")
        drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall}" fill="{_fill(place)}">'
            f"<title>{hint}</title></rect>"
        )
        if wide >= LEAST_QUANTITY and tall == BAR_HEIGHT:
            drawn.append(_text(x + wide / 2, y + 16, quantity(value, unit), INK, "middle"))
        x += wide
    return drawn


def _level(
    level: tuple[str, float], unit: str, frame: tuple[float, float, float, float], theme: Theme
) -> list[str]:
    """A dashed line across all bars, its name above them."""
    left, scale, top, bottom = frame
    x = left + level[1] * scale
    line = (
        f'<line x1="{x:.1f}" y1="{top - 4:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="{theme.ink}" '
        'stroke-width="1.5" stroke-dasharray="4 3"/>'
    )
    return [line, _text(x, top - 8, f"{level[0]} {quantity(level[1], unit)}", theme.ink, "end")]


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


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", size: int = FONT_SIZE) -> str:
    sized = "" if size == FONT_SIZE else f' font-size="{size}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{sized}>{escape(text)}</text>'
    )
