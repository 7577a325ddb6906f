"""Rows of plain values as what other programs take: CSV, a DataFrame, an HTML table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from meshwright.specs.error import SpecError
from meshwright.specs.printable import printable

Rows = Sequence[Mapping[str, Any]]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a text begins that a spreadsheet would run
DIGITS = 6  # of a number in HTML


def csv_text(rows: Rows) -> str:
    """CSV with a head: numbers in full, nothing for what nobody knows. A text that a spreadsheet would take for a formula
    gets an apostrophe before it."""
    file = io.StringIO()
    names = _names(rows)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_cell(row.get(name)) for name in names] for row in rows)
    return file.getvalue()


def data_frame(rows: Rows) -> Any:
    """A pandas DataFrame. Raises SpecError where pandas is not installed, which nothing else here needs."""
    try:
        import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise SpecError(
            "a DataFrame without pandas",
            allowed="pandas beside meshwright",
            next="pip install pandas, or take the rows",
        ) from None
    return pandas.DataFrame([dict(row) for row in rows], columns=_names(rows))


def html_table(rows: Rows, title: str = "") -> str:
    """A table for a page or a notebook."""
    names = _names(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_html_cell(row.get(name)))}</td>' for name in names)}</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(printable(title))}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv_cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def _html_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return "" if value is None else printable(str(value))
