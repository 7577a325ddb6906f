"""table_of_rows: rows of plain values as a section of texts; what looks like numbers stands to the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.reports.chart.quantity import quantity
from meshwright.workbench.document.document import TableColumn, TableSection

MOST_ROWS = 2_000  # of a table; the rest is counted
UNIT_OF_ENDING = {"_bytes": "B", "_per_s": "", "_s": "s", "_flops": "FLOP"}


def table_of_rows(id: str, title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> TableSection:
    """Every key is a column, in the order in which it is first met."""
    shown = rows[:MOST_ROWS]
    if len(rows) > len(shown):
        note = f"{note} The first {len(shown):,} of {len(rows):,} rows.".strip()
    texts = [{key: cell_text(key, value) for key, value in row.items()} for row in shown]
    keys = list(dict.fromkeys(key for row in texts for key in row))
    columns = [TableColumn(key, key, all(_is_number(row.get(key, "-")) for row in texts)) for key in keys]
    return TableSection(id, title, columns, [{key: row.get(key, "-") for key in keys} for row in texts], note)


def cell_text(name: str, value: Any) -> str:
    """A value as text, in the unit that the end of its name says."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        ending = next((each for each in UNIT_OF_ENDING if name.endswith(each)), "")
        return (
            f"{value:,}"
            if isinstance(value, int) and not ending
            else quantity(float(value), UNIT_OF_ENDING.get(ending, ""))
        )
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell_text(str(key), each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell_text(name, each) for each in value)
    return str(value)


def _is_number(text: str) -> bool:
    """A dash, or a text that begins as a number does."""
    return text in ("", "-") or text.lstrip("+-")[:1].isdigit()
