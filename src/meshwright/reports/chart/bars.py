"""Shares of a whole as stacked bars: where the time of a step goes, plan by plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from meshwright.reports.chart.drawing import (
    CHARACTER_WIDTH,
    FONT_SIZE,
    PAPER,
    Theme,
    colour_key,
    line,
    rect,
    svg_document,
    text,
)
from meshwright.reports.chart.palette import INK
from meshwright.reports.chart.quantity import quantity

BAR_HEIGHT, BAR_GAP, TOP = 24, 10, 8
# Apart for the colour-blind, too (tests/reports/chart/test_palette.py), and bright enough for dark text.
FILLS = (
    "#5b8fd9", "#e09a52", "#58b394", "#c97bb0", "#a9d6b2", "#e8cf5a", "#e06c6c", "#7fd0e0", "#aa8909", "#c3c9d1",
)  # fmt: skip
LEAST_TEXT = 34  # pixels: narrower parts show no number
LEAST_QUANTITY = 54  # the same of a number with its unit
THIN_HEIGHT, THIN_GAP, MANY = 12, 4, 16  # more bars than this are thin and show no numbers in their parts
LEVEL_HEIGHT = 16  # room above the bars for the name of a level


def scaled_bars_svg(
    bars: Mapping[str, Mapping[str, float]],
    unit: str = "s",
    width: int = 860,
    theme: Theme = PAPER,
    title: str = "",
    standalone: bool = True,
    level: tuple[str, float] | None = None,
    is_scaled: bool = True,
) -> str:
    """A bar for each of `bars`, cut into its parts in a common order of colours; many bars are thin.

    Args:
        bars: label -> {part: value}; values in `unit`, from 0.
        unit: as of `quantity`; the sum stands behind the bar, every part's value in its hint.
        level: name and value of a line across all bars, such as what a device has.
        is_scaled: a bar is as long as its sum; otherwise all are of one length and parts are shares.
    """
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    left = 14 + CHARACTER_WIDTH * max((len(label) for label in bars), default=1)
    long = max(
        width - 14 - CHARACTER_WIDTH * 9 - left, width / 3
    )  # labels may be longer than a telephone is wide
    totals = [sum(parts.values()) for parts in bars.values()]
    longest = max([*totals, *([level[1]] if level else [])], default=0.0) or 1.0
    is_thin = is_scaled and len(bars) > MANY
    tall, gap, size = (THIN_HEIGHT, THIN_GAP, 9) if is_thin else (BAR_HEIGHT, BAR_GAP, FONT_SIZE)
    sized = f' font-size="{size}"' if is_thin else ""
    body: list[str] = []
    top = y = float(TOP + (LEVEL_HEIGHT if level else 0))
    for (label, parts), total in zip(bars.items(), totals, strict=True):
        scale, middle = long / (longest if is_scaled else total or 1.0), y + tall / 2 + size / 3
        body.append(text(left - 8, middle, label, theme.ink, "end", sized))
        body += _parts(parts, names, unit, (left, scale, y, tall), is_scaled)
        body.append(text(left + total * scale + 8, middle, quantity(total, unit), theme.ink, extra=sized))
        y += tall + gap
    body += _level(level, unit, (left, long / longest, top, y), theme) if level else []
    y = 4 + colour_key(
        body, [(name, _fill(place)) for place, name in enumerate(names)], left, y, width, theme
    )
    return svg_document(body, width, round(y), title or ", ".join(bars), theme, standalone)


bars_svg = partial(
    scaled_bars_svg, is_scaled=False
)  # one bar of equal length for each, parts as shares of their sum


def _parts(
    parts: Mapping[str, float],
    names: Sequence[str],
    unit: str,
    frame: tuple[float, float, float, float],
    is_scaled: bool,
) -> list[str]:
    """Rectangles of one bar from `left` at `y`, `scale` pixels a unit, with their numbers or shares where they fit."""
    left, scale, y, tall = frame
    x, drawn, total = left, [], sum(parts.values()) or 1.0
    for place, name in enumerate(names):
        value = parts.get(name, 0.0)
        wide, share = value * scale, 100 * value / total
        if wide <= 0:
            continue
        hint = f"{name}: {quantity(value, unit)}, {share:.1f} %"
        drawn.append(rect(x, y, wide, tall, _fill(place), hint=hint))
        if wide >= (LEAST_QUANTITY if is_scaled else LEAST_TEXT) and tall == BAR_HEIGHT:
            said = quantity(value, unit) if is_scaled else f"{share:.0f} %"
            drawn.append(text(x + wide / 2, y + 16, said, INK, "middle"))
        x += wide
    return drawn


def _level(
    level: tuple[str, float], unit: str, frame: tuple[float, float, float, float], theme: Theme
) -> list[str]:
    """A dashed line across all bars, its name above them."""
    left, scale, top, bottom = frame
    x, said = left + level[1] * scale, f"{level[0]} {quantity(level[1], unit)}"
    return [
        line(x, top - 4, x, bottom, theme.ink, 1.5, "4 3"),
        text(x, top - 8, said, theme.ink, "end"),
    ]


def _fill(place: int) -> str:
    return FILLS[place % len(FILLS)]
