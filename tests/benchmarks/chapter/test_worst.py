"""The worst rows: by size, not more than three of one cause, runs that others contradict, and no row without its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.chapter.reasons import ALIKE, REASONS
from benchmarks.chapter.worst import DISTURBED, MOST_ALIKE, NUM_WORST, by_size, chosen, worst_table
from tests.benchmarks.step_sample import step_row

from meshwright.evidence.tables.score import RowPrediction, Scored, newest_releases
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.evidence.unseen.left_out import left_out

PAGE = Path(__file__).resolve().parents[3] / "docs" / "prediction-in-pictures.md"
FAR = next(iter(ALIKE))  # tensor parallelism over nodes, with a pipeline
REFRESH = "write the page anew: python -m benchmarks.chapter TABLE.csv ... --docs docs"


def scored(row_id: str, ratio: float, seconds: float = 8.0, **fields: object) -> Scored:
    """A row of which `ratio` times the measured seconds are predicted."""
    return step_row(row_id, seconds, **fields), RowPrediction(row_id, seconds, ratio * seconds)


def shown() -> list[list[str]]:
    """Cells of the table on the page."""
    inside = PAGE.read_text(encoding="utf-8").split("<!-- worst -->", 1)[1].split("<!-- end worst -->", 1)[0]
    rows = [line.strip("|").split(" | ") for line in inside.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_half_as_long_is_as_far_off_as_twice_as_long() -> None:
    rows = [scored("a-1", 0.5), scored("b-1", 1.9), scored("c-1", 2.1)]
    assert [each.scored[0].row_id for each in by_size(rows)] == ["c-1", "a-1", "b-1"]


def test_of_one_cause_three_rows_are_chosen_and_then_the_next_cause() -> None:
    far = [
        scored(f"a-{number}", 0.1 + number / 100, tp=16, pp=2, gpus=64, layers=number + 2, model=f"m{number}")
        for number in range(MOST_ALIKE + 2)
    ]
    rows = [*far, scored("b-1", 0.9)]
    found = chosen(rows)
    assert [each.cause for each in found] == [FAR] * MOST_ALIKE + ["b-1"]
    assert [each.scored[0].row_id for each in found[:MOST_ALIKE]] == ["a-0", "a-1", "a-2"]


def test_a_run_is_contradicted_by_one_that_is_much_faster_a_microbatch_whatever_its_replicas() -> None:
    alike = {"dp": 8, "num_microbatches": 2, "micro_batch_seqs": 1, "global_batch_seqs": 16}
    usual = scored("a-1", 1.0, 2.0, **alike)
    more = scored("a-2", 1.0, 4.0, **alike | {"num_microbatches": 4, "global_batch_seqs": 32})
    slow = scored("a-3", 0.25, 8.0, **alike)
    causes = {each.scored[0].row_id: each.cause for each in by_size([usual, more, slow])}
    assert causes == {"a-1": "a-1", "a-2": "a-2", "a-3": DISTURBED}


def test_a_row_without_a_sentence_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    table = list(worst_table([scored("nobody-1", 0.5), scored("mosaic-080", 0.6)]))
    assert "nobody-1" in capsys.readouterr().err
    assert REASONS["mosaic-080"] in table[-1]


def test_every_row_of_the_page_has_the_sentence_of_the_literal() -> None:
    rows = shown()
    assert len(rows) == NUM_WORST
    for row in rows:
        name = row[0].partition(":")[0]
        assert row[-1].startswith(REASONS[name]), f"{name}: {REFRESH}"
        assert len(row[-1].split()) >= 5


@pytest.mark.slow
def test_the_table_of_the_page_is_that_of_the_run(shared_data: Path) -> None:
    tables = [
        table
        for folder in ("training", "training_wild")
        for table in sorted((shared_data / "calibration" / folder).glob("*.csv"))
    ]
    rows = newest_releases(row for row in read_rows(tables).rows if row.is_core)
    run = [line for line in worst_table(left_out(rows)) if line.startswith("|")]
    inside = PAGE.read_text(encoding="utf-8").split("<!-- worst -->", 1)[1].split("<!-- end worst -->", 1)[0]
    assert [line for line in inside.splitlines() if line.startswith("|")] == run, REFRESH
