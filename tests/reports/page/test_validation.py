"""The page of `validate training`: every row drawn, worst first, skipped ones with their reason, all text escaped."""

from __future__ import annotations

import re
from typing import Any

from meshwright.reports import DataTable, Figure, report_html, validation_report
from meshwright.reports.page.validation import MOST_IDS, MOST_REASONS, row_table, scatter_svg, skipped_table

EVIL = "<script>alert(1)</script>"


def row(name: str, predicted_s: float | None, measured_s: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        "row_id": name,
        "source": name.rpartition("-")[0],
        "is_core": True,
        "predicted_s": predicted_s,
        "low_s": None if predicted_s is None else 0.9 * predicted_s,
        "high_s": None if predicted_s is None else 1.1 * predicted_s,
        "measured_s": measured_s,
        "error": -1.0 if predicted_s is None else predicted_s / measured_s - 1,
        "basis": "interpolated",
        "predicted_peak_bytes": None,
        "measured_peak_bytes": None,
        "skipped": "no such chip" if predicted_s is None else None,
        **fields,
    }


ROWS = [row("a-1", 1.1), row("b-1", 30.0, 60.0), row("a-2", None), row("a-3", 0.02, 0.03)]


def test_the_scatter_has_a_mark_for_every_predicted_row() -> None:
    drawn = scatter_svg(ROWS)
    spoken = re.findall(r"<title>([^<]*): predicted", drawn)
    assert spoken == ["a-1", "b-1", "a-3"]
    assert "-50.0 %" in drawn


def test_marks_lie_inside_the_square_and_an_exact_row_on_the_diagonal() -> None:
    drawn = scatter_svg([row("a-1", 2.0, 2.0), row("a-2", 0.001, 500.0), row("a-3", 500.0, 0.001)])
    marks = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="4"[^>]*><title>', drawn)
    at = [(float(x), float(y)) for x, y in marks]
    assert len(at) == 3 and all(64 <= x <= 624 and 12 <= y <= 572 for x, y in at)
    assert abs((at[0][0] - 64) - (572 - at[0][1])) < 0.2
    assert at[1][0] > at[2][0] and at[1][1] > at[2][1]


def test_sources_beyond_the_colours_get_another_mark() -> None:
    drawn = scatter_svg([row(f"s{number:02d}-1", 1.0 + number) for number in range(14)])
    assert all(f"<{shape} " in drawn for shape in ("circle", "rect", "polygon"))


def test_rows_stand_worst_first_without_skipped_ones() -> None:
    assert [entry["row"] for entry in row_table(ROWS)] == ["b-1", "a-3", "a-1"]
    assert row_table(ROWS)[0]["error"] == "-50.0 %"


def test_the_page_is_whole_and_escaped() -> None:
    rows = [*ROWS, row(f"{EVIL}-1", 1.0)]
    page = report_html(
        validation_report(
            rows, [Figure("median", "5 %")], [DataTable("By source", [{"source": "a"}])], subtitle=EVIL
        )
    )
    assert EVIL not in page
    for words in (
        "Predicted against measured",
        "By source",
        "Rows, worst first",
        "Skipped rows",
        "no such chip",
    ):
        assert words in page


def test_without_predictions_there_is_no_picture() -> None:
    page = report_html(validation_report([row("a-1", None)], [], []))
    assert "Predicted against measured" not in page and "Skipped rows" in page


def test_skipped_rows_stand_by_reason_without_file_and_row() -> None:
    def skipped(name: str, why: str) -> dict[str, Any]:
        said = f"/some/where/table.csv, line 7: {name} {why}; allowed: other rows; leave this row out"
        return row(name, None, skipped=said)

    rows = [skipped(f"a-{number}", "trains adapters") for number in range(4)]
    rows = [row("b-1", None, skipped="no such chip"), row("c-1", 1.0), *rows]
    assert skipped_table(rows) == [
        {"rows": 4, "why": "trains adapters", "which": "a-0, a-1, a-2 and 1 more"},
        {"rows": 1, "why": "no such chip", "which": "b-1"},
    ]
    assert skipped_table([row("c-1", 1.0)]) == []


def test_many_reasons_share_a_last_line() -> None:
    rows = [row(f"a-{number}", None, skipped=f"why {number}") for number in range(MOST_REASONS + 2)]
    found = skipped_table(rows)
    assert len(found) == MOST_REASONS and sum(line["rows"] for line in found) == len(rows)
    assert found[-1]["why"].startswith("3 other reasons") and found[-1]["which"].count("a-") == MOST_IDS
