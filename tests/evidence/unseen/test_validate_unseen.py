"""`validate unseen`: each source by a fit without it, skipped rows counted whole, and every limit with a number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.evidence.training_sample import table_row, write_table

from meshwright.cli.evidence.unseen_view import validated_unseen
from meshwright.cli.frame.output import Output, text_of
from meshwright.evidence.tables.table import read_training_table
from meshwright.evidence.unseen.left_out import from_few_devices, left_out
from meshwright.evidence.unseen.validate_unseen import Limit, validate_unseen

SMALL = {"layers": 2, "hidden": 1024, "heads": 8, "head_dim": 128, "kv_heads": 8, "ffn": 4096, "vocab": 32000}
NEAR_ONE_LIMIT = Limit("x", 0.72, 0.88, 0.72)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stacks on 8 and 128 devices; one row is of a device that nobody has."""
    known = [
        table_row(f"torchtitan-{n}", 0.2, gpus=g, dp=g, global_batch_seqs=g, peak_mem_gib=9, **SMALL)
        for n, g in ((1, 8), (2, 128))
    ]
    other = [table_row("own-1", 0.2, **SMALL), table_row("own-2", 0.2, gpu="Abacus", **SMALL)]
    write_table(tmp_path / "a.csv", known)
    write_table(tmp_path / "b.csv", other)
    return tmp_path


def test_a_known_source_is_predicted_without_itself(folder: Path) -> None:
    rows = read_training_table(folder / "a.csv")
    renamed = [
        type(row)(**{**vars(row), "source": "nobody", "row_id": f"nobody-{n}"}) for n, row in enumerate(rows)
    ]
    without, with_all = left_out(rows), left_out(renamed)
    assert without[0][1].predicted_s != with_all[0][1].predicted_s
    few = from_few_devices(rows)
    assert len(few) == 2 and few[1][1].predicted_s != without[1][1].predicted_s
    assert not from_few_devices(rows[:1])


def test_every_limit_has_a_number_where_there_are_rows(folder: Path) -> None:
    found = validate_unseen([folder])
    assert found.sources["own"].num_skipped == 1
    values = {limit.name: limit.value for limit in found.limits}
    assert values["dense: average over sources of the median error"] is not None
    assert values["experts: average over sources of the median error"] is None
    assert list(found.beyond) == ["torchtitan"]
    assert values["memory: chances, mean distance from observed shares"] == found.chances.error
    assert (found.chances.num_rows, found.chances.num_sources) == (2, 1)
    assert json.loads(json.dumps(found.to_dict()))["kinds"]["dense"]["num_rows"] == 4


def test_a_limit_may_be_met_from_both_sides() -> None:
    assert NEAR_ONE_LIMIT.holds
    assert not Limit("x", 0.71, 0.88, 0.72).holds and not Limit("x", 0.89, 0.88, 0.72).holds
    assert not Limit("x", None, 0.1).holds


def test_a_terminal_shows_sources_and_what_should_hold(folder: Path) -> None:
    result = validated_unseen(Output(is_quiet=True), [folder])
    shown = text_of(result.view)
    assert (
        "torchtitan" in shown
        and "What should hold" in shown
        and "Chance that memory" in shown
        and result.exit_code == 0
    )
    assert result.report is not None and result.report().tables
