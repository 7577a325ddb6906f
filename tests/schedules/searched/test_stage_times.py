"""Stage times: what is refused, folding, the bound, and the CSV file."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.schedules.searched.stage_times import StageTimes, read_stage_times, span_bound_s
from meshwright.specs.error import SpecError


def test_reads_a_file_in_any_order_of_rows_and_columns(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("\ufeff# measured\nF, stage,I,W\n2, 1,3,4\n\n0.5,0, 1e0,0\n", encoding="utf-8")
    times = read_stage_times(file, communication_s=0.25)
    assert times == StageTimes((0.5, 2.0), (1.0, 3.0), (0.0, 4.0), 0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its columns are none; allowed: stage,F,I,W"),
        ("stage,F,I\n0,1,1\n", "its columns are stage, F, I;"),
        ("stage,F,I,W,X\n0,1,1,1,1\n", "its columns are stage, F, I, W, X"),
        ("stage,F,I,W\n", "no stage is there"),
        ("stage,F,I,W\n0,1,1\n", "line 2: 3 fields"),
        ("stage,F,I,W\n0,1,1,1\n\n0,1,1,1\n", "line 4: stage 0 is there twice"),
        ("stage,F,I,W\n0,1,1,1\n2,1,1,1\n", "stage 1 is not there"),
        ("stage,F,I,W\n1.0,1,1,1\n", "line 2: '1.0' is no stage"),
        ("stage,F,I,W\n-1,1,1,1\n", "'-1' is no stage"),
        ("stage,F,I,W\n0,1,x,1\n", "line 2, I: 'x' is no number"),
        ("stage,F,I,W\n0,1,1,nan\n", "line 2, W takes nan seconds"),
        ("stage,F,I,W\n0,-1,1,1\n", "line 2, F takes -1.0 seconds"),
        ("stage,F,I,W\n0,0,0,0\n", "all stages take 0 seconds"),
    ],
)
def test_refuses_what_is_no_table_of_stage_times(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "times.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_stage_times(file)
    assert message in str(caught.value)


def test_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"missing\.csv: cannot be read"):
        read_stage_times(tmp_path / "missing.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"binary\.csv: cannot be read"):
        read_stage_times(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    ("columns", "communication_s"),
    [
        (((1.0,), (1.0, 1.0), (1.0,)), 0.0),
        (((), (), ()), 0.0),
        (((1.0,), (float("inf"),), (1.0,)), 0.0),
        (((1.0,), (1.0,), (1.0,)), -0.1),
    ],
)
def test_refuses_times_that_cannot_be(columns: tuple[tuple[float, ...], ...], communication_s: float) -> None:
    with pytest.raises(SpecError):
        StageTimes(columns[0], columns[1], columns[2], communication_s)


def test_folding_halves_and_comes_back() -> None:
    folded = StageTimes((2.0, 4.0), (1.0, 3.0), (0.5, 0.0), 0.1).folded()
    assert folded == StageTimes((1.0, 2.0, 2.0, 1.0), (0.5, 1.5, 1.5, 0.5), (0.25, 0.0, 0.0, 0.25), 0.1)


def test_bound_is_work_and_fill_of_the_device_that_has_most() -> None:
    times = StageTimes((1.0, 2.0, 1.0), (1.0, 2.0, 3.0), (1.0, 2.0, 1.5), 0.5)
    assert span_bound_s(times, 4) == max(0 + 4 * 3, 1.5 + 4 * 6, 1.5 + 2.5 + 4 * 5.5)
    assert span_bound_s(times.folded(), 4, num_chunks=2) == max(12.0, 1.0 + 24.0, 1.0 + 1.5 + 22.0)
