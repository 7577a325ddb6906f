"""Tables of measured training runs become rows with checked numbers, or one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence.training_sample import table_row, write_table

from meshwright.evidence.tables.table import GIB, read_training_table
from meshwright.specs.error import SpecError


def _read(tmp_path: Path, *rows):
    return read_training_table(write_table(tmp_path / "ours.csv", rows))


def test_a_row_has_the_facts_that_scoring_needs(tmp_path: Path) -> None:
    fields = {"n_experts": 8, "precision": "FP8-CS", "peak_mem_gib": 70.5, "note": "26.06.01 NeMo Container"}
    (row,) = _read(tmp_path, table_row("our_bridge-7", 1.5, config_group="g3", core=0, **fields))
    assert (row.row_id, row.source, row.config_key) == ("our_bridge-7", "our_bridge", ("our_bridge", "g3"))
    assert (row.is_core, row.is_moe, row.is_float8, row.sequence_length) == (False, True, True, 8192)
    assert (row.measured_s, row.peak_bytes, row.release) == (1.5, 70.5 * GIB, "26.06.01")


def test_numbers_in_a_note_that_is_of_no_container_are_no_release(tmp_path: Path) -> None:
    (row,) = _read(tmp_path, table_row("a-1", 1.0, note="arXiv 22.05 Table 5"))
    assert row.release == ""


def test_a_row_without_a_group_is_a_configuration_of_its_own(tmp_path: Path) -> None:
    rows = _read(tmp_path, table_row("a-1", 1.0, config_group=""), table_row("a-2", 1.0, config_group=""))
    assert rows[0].config_key != rows[1].config_key


def test_without_a_time_it_comes_from_tokens_per_second(tmp_path: Path) -> None:
    (row,) = _read(tmp_path, table_row("a-1", "", tokens_per_s_per_gpu=2048.0))
    assert row.measured_s == pytest.approx(8192 * 16 / (2048.0 * 8))


@pytest.mark.parametrize(
    ("value", "unit", "seconds"),
    [
        (250, "ms/iteration", 0.25),
        (3, "s/step (median)", 3.0),
        (4, "sequences/s", 4.0),
        (1024, "tokens/s/gpu", 16.0),
    ],
)
def test_without_both_it_comes_from_what_was_published(tmp_path: Path, value, unit, seconds) -> None:
    (row,) = _read(tmp_path, table_row("a-1", "", measured_value=value, unit=unit))
    assert row.measured_s == pytest.approx(seconds)


def test_a_row_without_any_time_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="line 3.*step_time_s"):
        _read(tmp_path, table_row("a-1", 1.0), table_row("a-2", "", unit="MFU %", measured_value=40))


@pytest.mark.parametrize("column", ["layers", "gpu", "tp", "precision", "row_id"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    row = table_row("a-1", 1.0)
    del row[column]
    with pytest.raises(SpecError, match=f"no column '{column}'"):
        _read(tmp_path, row)


def test_one_of_the_columns_of_times_is_needed(tmp_path: Path) -> None:
    row = table_row("a-1", 1.0)
    del row["step_time_s"], row["tokens_per_s_per_gpu"]
    with pytest.raises(SpecError, match="no column 'step_time_s'"):
        _read(tmp_path, row)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("layers", "many"),
        ("gpus", "7.5"),
        ("tp", "-1"),
        ("peak_mem_gib", "nan"),
        ("inter_GBps", "inf"),
        ("heads", ""),
    ],
)
def test_a_bad_number_is_named_with_line_and_column(tmp_path: Path, column: str, text: str) -> None:
    with pytest.raises(SpecError, match=f"ours.csv, line 3: {column} is '{text}'"):
        _read(tmp_path, table_row("a-1", 1.0), table_row("a-2", 1.0, **{column: text}))


def test_whole_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    (row,) = _read(tmp_path, table_row("a-1", 1.0, num_microbatches="64.0"))
    assert row.count("num_microbatches") == 64


def test_unknown_columns_are_kept_as_text_and_otherwise_ignored(tmp_path: Path) -> None:
    (row,) = _read(tmp_path, {**table_row("a-1", 1.0), "weather": "fair"})
    assert row.text("weather") == "fair"


def test_without_the_column_every_row_is_core(tmp_path: Path) -> None:
    row = table_row("a-1", 1.0)
    del row["core"]
    assert _read(tmp_path, row)[0].is_core


def test_a_table_of_single_stages_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "stages.csv", [{"run": "r", "fwd_us_per_stage": "1 2", "seq": 4}])
    with pytest.raises(SpecError, match="times of single stages"):
        read_training_table(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_training_table(tmp_path / "none.csv")


def test_a_line_with_too_many_values_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "ours.csv", [table_row("a-1", 1.0)])
    path.write_text(path.read_text().rstrip() + ",more\n")
    with pytest.raises(SpecError, match="line 2: more values than columns"):
        read_training_table(path)
