"""Rows as CSV, HTML and DataFrames: what was written is read back, and no text runs in a spreadsheet or on a page."""

from __future__ import annotations

import csv
import io
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import SpecError
from meshwright.specs.row_table import FORMULA, csv_text, data_frame, html_table

ROWS = [{"plan": "pp=1, dp=4", "step_s": 0.1234567890123, "mfu": None}, {"plan": '"<b>"', "bubble": 0.5}]


def test_numbers_are_written_in_full_and_nothing_for_what_nobody_knows() -> None:
    head, first, second = csv.reader(io.StringIO(csv_text(ROWS)))
    assert head == ["plan", "step_s", "mfu", "bubble"]
    assert first == ["pp=1, dp=4", "0.1234567890123", "", ""] and second == ['"<b>"', "", "", "0.5"]


@given(st.text())
def test_no_text_is_a_formula_or_another_row(text: str) -> None:
    read = list(csv.reader(io.StringIO(csv_text([{"a": text, "b": 1}]))))
    assert len(read) == 2 and read[1][1] == "1" and not read[1][0].startswith(FORMULA)


def test_texts_of_strangers_are_no_markup() -> None:
    shown = html_table(ROWS, "<script>")
    assert "<b>" not in shown and "<script>" not in shown and "0.123457" in shown


def test_a_frame_has_the_columns_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", pandas)  # type: ignore[arg-type]
    assert data_frame(ROWS) == (ROWS, ["plan", "step_s", "mfu", "bubble"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SpecError, match="pip install pandas"):
        data_frame(ROWS)
