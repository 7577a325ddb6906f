"""The page of `validate training`: predicted against measured by source, the scores, and every row, worst first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.reports.chart.drawing import (
    CHARACTER_WIDTH,
    PAGE,
    Plane,
    Shape,
    Theme,
    line,
    mark,
    svg_document,
    text,
)
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import DataTable, Figure, Picture, Report

WIDTH, PLOT = 860, 560  # pixels: of the picture, and of the square that is plotted
LEFT, TOP, BOTTOM = 64, 12, 44
MARGIN = 1.15  # room around the outermost points, as a factor
ERROR_BAND = 0.10  # the dashed lines beside the diagonal
TICK_FACTORS = (1, 2, 5)
MOST_REASONS, MOST_IDS = 5, 3  # lines of skipped rows by reason, and rows named in each
_PLACE = re.compile(r"^.*?, line \d+: ")  # in front of what is wrong with a row: its file and line
_ALLOWED = "; allowed: "  # what follows says what would be accepted
MARKS: tuple[Shape, ...] = ("circle", "square", "triangle")  # sources beyond the colours get the next mark

Row = Mapping[str, Any]


def validation_report(
    rows: Sequence[Row],
    figures: Sequence[Figure],
    tables: Sequence[DataTable],
    *,
    title: str = "validate training",
    subtitle: str = "",
    assumptions: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Report:
    """The page.

    Args:
        rows: as --json has them: row_id, source, is_core, predicted_s, low_s, high_s, measured_s, error, basis, skipped,
            predicted_peak_bytes, measured_peak_bytes. Times in seconds.
        figures, tables: the headline numbers and the tables of scores, already as text or plain numbers.
    """
    note = "Seconds of a step, both axes logarithmic; dashed: 10 % off. Point at a mark to see its row."
    picture = Picture("Predicted against measured", scatter_svg(rows, PAGE, standalone=False), note)
    shown = DataTable("Rows, worst first", row_table(rows), "Error is predicted over measured, less one.")
    skipped = DataTable("Skipped rows", skipped_table(rows), "By reason. Each counts as an error of 100 %.")
    return Report(
        title,
        subtitle,
        figures=figures,
        pictures=[picture] if any(row["predicted_s"] for row in rows) else [],
        tables=[*tables, shown, *([skipped] if skipped.rows else [])],
        assumptions=assumptions,
        provenance=provenance or {},
    )


def row_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Predicted rows as texts with units, the largest error first."""
    predicted = [row for row in rows if row["predicted_s"] is not None]
    ordered = sorted(predicted, key=lambda row: -abs(row["error"]))
    return [
        {
            "row": row["row_id"],
            "core": "yes" if row["is_core"] else "no",
            "predicted": quantity(row["predicted_s"], "s"),
            "from": quantity(row["low_s"], "s"),
            "to": quantity(row["high_s"], "s"),
            "measured": quantity(row["measured_s"], "s"),
            "error": signed_percent(row["error"]),
            "basis": row["basis"],
            "predicted peak": quantity(row["predicted_peak_bytes"], "B"),
            "measured peak": quantity(row["measured_peak_bytes"], "B"),
        }
        for row in ordered
    ]


def signed_percent(share: float | None) -> str:
    """0.031 as `+3.1 %`; a dash where there is nothing."""
    return "-" if share is None else f"{100 * share:+.1f} %"


def scatter_svg(rows: Sequence[Row], theme: Theme = PAGE, standalone: bool = True) -> str:
    """Predicted over measured seconds of the predicted rows on logarithmic axes, a colour and mark for each source."""
    points = [row for row in rows if row["predicted_s"] and row["measured_s"]]
    values = [float(row[key]) for row in points for key in ("measured_s", "predicted_s")] or [1.0]
    low, high = min(values) / MARGIN, max(values) * MARGIN
    sources = sorted({str(row["source"]) for row in points})
    square = Plane(LEFT, TOP, LEFT + PLOT, TOP + PLOT, low, high, low, high, is_logarithmic=True)
    ticks = [(tick, f"{tick:g} s") for tick in _ticks(low, high)]
    body = square.axes(ticks, ticks, theme, "measured", "predicted", has_columns=True)
    body += _diagonals(square, theme)
    for row in points:
        at = float(square.x(row["measured_s"])), float(square.y(row["predicted_s"]))
        body.append(_mark(*at, sources.index(str(row["source"])), theme, _spoken(row)))
    body += _legend(sources, theme)
    height = TOP + PLOT + BOTTOM
    return svg_document(
        body, WIDTH, height, "predicted against measured seconds of a step", theme, standalone
    )


def skipped_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Skipped rows by reason, most frequent first: how many, why, and which; the rarest reasons share the last line."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row["predicted_s"] is None:
            groups.setdefault(_reason(str(row["skipped"]), str(row["row_id"])), []).append(row["row_id"])
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    if len(ordered) > MOST_REASONS:
        rest = ordered[MOST_REASONS - 1 :]
        ids = [row_id for _, own in rest for row_id in own]
        ordered = [*ordered[: MOST_REASONS - 1], (f"{len(rest)} other reasons; --json has each", ids)]
    return [{"rows": len(ids), "why": reason, "which": _first(ids)} for reason, ids in ordered]


def _reason(skipped: str, row_id: str) -> str:
    """Why, without the file, the line and the row that it was said of, and without what would be allowed."""
    said = _PLACE.sub("", skipped).partition(_ALLOWED)[0]
    return said.replace(row_id, "").strip() or skipped


def _first(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
    return ", ".join(ids[:MOST_IDS]) + more


def _spoken(row: Row) -> str:
    times = f"predicted {quantity(row['predicted_s'], 's')}, measured {quantity(row['measured_s'], 's')}"
    return f"{row['row_id']}: {times}, {signed_percent(row['error'])}"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) between the ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        tick for power in powers for factor in TICK_FACTORS if low <= (tick := factor * 10.0**power) <= high
    ]


def _diagonals(square: Plane, theme: Theme) -> list[str]:
    """Where both are equal, and where they are off by ERROR_BAND to either side, inside the square."""
    drawn = []
    for factor in (1.0, 1.0 + ERROR_BAND, 1.0 - ERROR_BAND):
        ends = np.array(
            [max(square.x_low, square.x_low / factor), min(square.x_high, square.x_high / factor)]
        )
        (x1, x2), (y1, y2) = square.x(ends), square.y(ends * factor)
        drawn.append(line(x1, y1, x2, y2, theme.muted, dash="" if factor == 1.0 else "4 4"))
    return drawn


def _mark(x: float, y: float, source: int, theme: Theme, spoken: str = "") -> str:
    shape = MARKS[source // len(theme.series) % len(MARKS)]
    style = f'fill="{theme.series[source % len(theme.series)]}" fill-opacity="0.7"'
    return mark(shape, x, y, 4, style, spoken)


def _legend(sources: Sequence[str], theme: Theme) -> list[str]:
    x = LEFT + PLOT + 24
    most = int((WIDTH - x - 16) / CHARACTER_WIDTH)
    drawn = []
    for number, source in enumerate(sources):
        y = TOP + 14 + 20 * number
        name = source if len(source) <= most else f"{source[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
        drawn += [_mark(x, y - 4, number, theme), text(x + 12, y, name, theme.ink)]
    return drawn
