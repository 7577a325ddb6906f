"""`validate training`: its JSON contract, what a terminal and the page show, and mistakes told with exit 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Runner
from tests.evidence.training_sample import table_row, write_table

from meshwright.cli.evidence.validating import validated_training
from meshwright.cli.frame.output import Output, Result, text_of
from meshwright.evidence.tables.score import RowPrediction

ROW_KEYS = "row_id predicted_s low_s high_s measured_s error basis predicted_peak_bytes skipped".split()
ERRORS = {"a-1": 0.05, "a-2": -0.30, "b-1": 4.0}


@pytest.fixture
def tables(tmp_path: Path) -> list[Path]:
    """Two sources, four rows; one of them is never predicted."""
    first = [table_row("a-1", 1.0), table_row("a-2", 2.0, tp=2, dp=4), table_row("a-3", 4.0)]
    second = [table_row("b-1", 8.0, core=0)]
    return [write_table(tmp_path / "a.csv", first), write_table(tmp_path / "b.csv", second)]


def predictor(rows: Any, *, progress: Any = None) -> list[RowPrediction]:
    """Off by ERRORS; a row without an entry is skipped."""
    found = []
    for row in rows:
        progress(row.row_id, 0.5)
        if row.row_id not in ERRORS:
            found.append(RowPrediction(row.row_id, row.measured_s, skipped="no [bold]such chip"))
            continue
        value = row.measured_s * (1 + ERRORS[row.row_id])
        found.append(
            RowPrediction(row.row_id, row.measured_s, value, 0.9 * value, 1.1 * value, "interpolated")
        )
    return found


@pytest.fixture
def result(tables: list[Path]) -> Result:
    return validated_training(Output(is_quiet=True), tables, predictor)


def test_json_keeps_its_contract_and_large_errors_are_no_failure(result: Result) -> None:
    data = json.loads(Output().json_text(result.data))
    assert result.exit_code == 0
    assert {"schema", "meshwright", "wall_s", "rows", "summary"} <= set(data)
    assert all(set(ROW_KEYS) <= set(row) for row in data["rows"])
    rows = {row["row_id"]: row for row in data["rows"]}
    assert rows["a-1"]["error"] == pytest.approx(0.05) and rows["a-1"]["skipped"] is None
    assert rows["a-3"]["predicted_s"] is None and rows["a-3"]["skipped"] == "no [bold]such chip"
    assert data["summary"]["num_core_rows"] == 3 and data["summary"]["sources"]["a"]["num_skipped"] == 1
    assert data["summary"]["lines"]["core"]["median_error"] == pytest.approx(0.30)
    assert data["summary"]["lines"]["not_core"]["median_error"] == pytest.approx(4.0)


def test_the_terminal_shows_sources_selections_worst_and_skipped(result: Result) -> None:
    shown = text_of(result.view)
    assert shown.index("By source") < shown.index("Selections") < shown.index("Worst rows")
    worst = [
        line.split()[0]
        for line in shown.split("Worst rows")[1].splitlines()
        if line.strip()[:2] in ("a-", "b-")
    ]
    assert worst == ["b-1", "a-2", "a-1"]
    skipped = shown.split("Skipped rows, by reason")[1]
    assert "no [bold]such chip" in skipped and "a-3" in skipped
    assert "skipped: 33.3 % (1 of 3 core rows; each counts as 100 %)" in shown


def test_the_page_has_scatter_rows_and_scores(result: Result, tmp_path: Path) -> None:
    Output(is_quiet=True, report_path=tmp_path / "page.html", is_json=True).deliver(result)
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    for words in ("Predicted against measured", "By source", "Selections", "Rows, worst first", "a-3"):
        assert words in page


def test_progress_is_on_stderr_and_tables_of_something_else_are_named(
    tables: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_table(tmp_path / "stages.csv", [{"run": "r"}])
    found = validated_training(Output(), [*tables, other], predictor)
    said = capsys.readouterr()
    assert said.out == "" and "a-1" in said.err
    assert "stages.csv is left out" in said.err.replace("\n", "")
    assert found.data["left_out"] == [str(other)]


def test_mistakes_are_the_users(run: Runner, tmp_path: Path) -> None:
    whole = table_row("a-1", 1.0)
    lacking = write_table(tmp_path / "lacking.csv", [{key: whole[key] for key in whole if key != "layers"}])
    unnamed = write_table(tmp_path / "unnamed.csv", [{key: whole[key] for key in whole if key != "row_id"}])
    for arguments, word in (
        (("training", tmp_path / "nothing.csv"), "nothing.csv"),
        (("training", lacking), "layers"),
        (("training", unnamed), "row_id"),
        (("training", tmp_path), str(tmp_path)[-8:]),
        (("trainin", lacking), "training"),
        (("training",), "TABLE"),
    ):
        ran = run("validate", *arguments)
        assert ran.code == 2 and ran.stdout == "", ran
        assert word in ran.stderr.replace("\n", "") and "Traceback" not in ran.stderr


def test_the_simulator_predicts_a_row_from_end_to_end(run: Runner, tables: list[Path]) -> None:
    ran = run("validate", "training", *tables, "--json", "--quiet")
    assert ran.code == 0 and ran.stderr == ""
    rows = {row["row_id"]: row for row in ran.data["rows"]}
    assert rows["a-1"]["skipped"] is None and rows["a-1"]["basis"]
    assert rows["a-1"]["low_s"] <= rows["a-1"]["predicted_s"] <= rows["a-1"]["high_s"]
    assert rows["a-1"]["predicted_s"] == rows["a-3"]["predicted_s"], "one layout, measured twice"
    assert rows["a-1"]["predicted_peak_bytes"] > 1e9


def test_a_page_shows_whole_per_cents_with_their_digit(result: Result, tmp_path: Path) -> None:
    Output(is_quiet=True, report_path=tmp_path / "page.html", is_json=True).deliver(result)
    page = (tmp_path / "page.html").read_text()
    assert ">30.0<" in page and ">30<" not in page


def test_a_row_with_an_empty_cell_is_told_beside_the_others(run: Runner, tmp_path: Path) -> None:
    """One cell of one row empties no table, in text, --json and on the page; the exit code stays 0, as with skipped rows."""
    table = write_table(tmp_path / "a.csv", [table_row("a-1", 1.0), table_row("a-[2]", 2.0, vocab="")])
    ran = run("validate", "training", table, "--json", "--quiet", "--report", tmp_path / "page.html")
    assert ran.code == 0 and [row["row_id"] for row in ran.data["rows"]] == ["a-1"]
    (unread,) = ran.data["unread"]
    assert unread["row_id"] == "a-[2]" and "line 3: vocab is ''" in unread["why"]
    assert "Rows not read" in (tmp_path / "page.html").read_text()
    shown = run("validate", "training", table)
    assert shown.code == 0 and "a-[2]" in shown.stdout and "vocab is ''" in shown.stdout
