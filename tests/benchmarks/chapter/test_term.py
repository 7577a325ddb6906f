"""What pictures are made of: blocks of a pipeline, axes in powers of two, marks on a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.chapter.term import Block, Term, medians, percent, power_ticks, rewrite
from tests.benchmarks.step_sample import step_row

from meshwright.evidence.tables.score import RowPrediction


def test_a_block_of_a_pipeline_is_the_step_over_its_slots_and_the_blocks_of_a_stage() -> None:
    row = step_row(
        "a-1",
        2.2,
        layers=8,
        pp=2,
        dp=4,
        gpus=8,
        num_microbatches=10,
        micro_batch_seqs=1,
        global_batch_seqs=40,
    )
    block = Block.of((row, RowPrediction("a-1", 2.2, 1.1)))
    assert block.measured_ms == pytest.approx(2200 / 11 / 4)
    assert block.predicted_ms == pytest.approx(block.measured_ms / 2)


def test_ticks_are_powers_of_two_around_the_values() -> None:
    assert power_ticks([1.0, 3.9], "s") == [(0.0, "1"), (1.0, "2"), (2.0, "4 s")]


def test_a_place_has_the_median_of_what_is_there() -> None:
    assert medians([(2.0, 5.0), (1.0, 1.0), (2.0, 7.0), (2.0, 6.0)]) == ([1.0, 2.0], [1.0, 6.0])


def test_a_share_is_written_with_its_sign_where_that_counts() -> None:
    assert (percent(0.075, 1), percent(0.12, is_signed=True)) == ("7.5 %", "+12 %")


def test_a_block_replaces_what_stood_between_its_marks_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a b -->\nold\n<!-- end a b -->\nafter\n", encoding="utf-8")
    term = Term("a b", "<svg/>", "what it is", ["told"])
    rewrite(page, {term.name: term.block, "not there": "x"})
    assert page.read_text(encoding="utf-8") == (
        "before\n<!-- a b -->\n\n![what it is](figures/a-b.svg)\n\ntold\n\n<!-- end a b -->\nafter\n"
    )
