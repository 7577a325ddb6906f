"""A table of numbers as shades: rows and columns of cells, darker where the number is larger."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.reports.chart.drawing import (
    CHARACTER_WIDTH,
    PAPER,
    Theme,
    rect,
    svg_document,
    text,
)

WIDTH = 860
CELL_HEIGHT, MOST_CELL_WIDTH, TOP, BOTTOM = 16, 40, 8, 22  # pixels
MOST_COLUMN_LABELS = 16  # of columns: more would lie on each other
FILL = "#2f6fd0"  # one hue, told apart by its share of it alone, so that nobody has to see colours


def heat_map_svg(
    values: Sequence[Sequence[float]],
    row_names: Sequence[str],
    column_name: str,
    top: float,
    unit: str = "",
    theme: Theme = PAPER,
    title: str = "",
    standalone: bool = True,
) -> str:
    """A cell for each of `values`, from nothing at 0 to the whole colour at `top` and above; its hint says the number.

    Args:
        values: rows of as many numbers each, from 0.
        row_names: of every row, on its left.
        column_name: what columns are; they are numbered from 0.
        unit: stands behind a number in its hint.
    """
    left = 14 + CHARACTER_WIDTH * max(map(len, row_names), default=1)
    num_columns = max(map(len, values), default=1)
    wide = min(MOST_CELL_WIDTH, (WIDTH - left - 14) / num_columns)
    body = []
    for number, (name, row) in enumerate(zip(row_names, values, strict=True)):
        y = TOP + number * CELL_HEIGHT
        body.append(text(left - 6, y + CELL_HEIGHT - 4, name, theme.muted, "end"))
        for column, value in enumerate(row):
            share = min(1.0, value / top) if top > 0 else 0.0
            hint = f"{name}, {column_name} {column}: {value:.4g}{unit}"
            body.append(
                rect(
                    left + column * wide,
                    y,
                    wide - 1,
                    CELL_HEIGHT - 1,
                    FILL,
                    f' fill-opacity="{share:.3f}"',
                    hint,
                )
            )
    end = TOP + len(values) * CELL_HEIGHT
    each = max(1, -(-num_columns // MOST_COLUMN_LABELS))
    for column in range(0, num_columns, each):
        body.append(text(left + (column + 0.5) * wide, end + 12, str(column), theme.muted, "middle"))
    body.append(text(left - 6, end + 12, column_name, theme.muted, "end"))
    return svg_document(body, WIDTH, end + BOTTOM, title, theme, standalone)
