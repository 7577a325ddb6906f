"""Rows to predictions: equal layouts once, reasons kept, reserved where reserved was measured; tables and mistakes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.evidence.training_sample import SampleRow, table_row, write_table

from meshwright.evidence.tables.score import RowPrediction
from meshwright.evidence.tables.validate_training import (
    LayoutPrediction,
    predict_rows,
    read_rows,
    validate_training,
)
from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, Workload
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.plan.prediction import Prediction


@dataclass(frozen=True)
class Job:
    """What a row becomes."""

    row: Any
    plan: Plan
    cluster: ClusterSpec = field(default_factory=lambda: Cluster("8xH100"))
    stack: str = "megatron"
    assumptions: tuple[str, ...] = ()


def plan_of(row_id: str, microbatch_size: int = 1) -> Plan:
    """A small plan whose model says which row it is of."""
    model = replace(ModelSpec.decoder(4, 32, 2, max_sequence_length=16), source=f"row {row_id}")
    return Plan.of(model, Cluster("8xH100"), Workload(16, 16), microbatch_size=microbatch_size)


def layout(value: float = 2.0) -> LayoutPrediction:
    step = Prediction.within(value, 0.1, "interpolated")
    device = DeviceMemory(0, "backward", 50.0, 60.0, 70.0, 0.0, (("parameters", 40.0), ("logits", 10.0)))
    return LayoutPrediction(step, MemoryEstimate((device,)))


def rows_of(*names: str) -> Any:
    return [SampleRow(name) for name in names]


def test_equal_layouts_are_predicted_once_and_rows_keep_their_order() -> None:
    asked: list[tuple[int, str]] = []

    def predict(plan: Any, cluster: Any) -> LayoutPrediction:
        asked.append((plan.microbatch_size, cluster.name))
        return layout(float(len(asked)))

    plans = {"a-1": 1, "a-2": 2, "a-3": 1}

    def plan_row(row: Any) -> Any:
        return Job(row, plan_of(row.row_id, plans[row.row_id]))

    told: list[tuple[str, float]] = []
    found = predict_rows(
        rows_of(*plans), progress=lambda *news: told.append(news), plan_row=plan_row, predict=predict
    )
    assert asked == [(1, "8xH100"), (2, "8xH100")]
    assert [(one.row_id, one.predicted_s) for one in found] == [("a-1", 1.0), ("a-2", 2.0), ("a-3", 1.0)]
    assert [share for _, share in told] == pytest.approx([0, 1 / 3, 2 / 3])


def test_the_same_plan_on_another_cluster_is_another_layout() -> None:
    clusters = iter((Cluster("8xH100"), Cluster("8xB200")))
    asked = []

    def predict(plan: Any, cluster: Any) -> LayoutPrediction:
        asked.append(cluster.name)
        return layout()

    def plan_row(row: Any) -> Any:
        return Job(row, plan_of("a-1"), next(clusters))

    predict_rows(rows_of("a-1", "a-2"), plan_row=plan_row, predict=predict)
    assert asked == ["8xH100", "8xB200"]


def test_rows_that_cannot_be_planned_or_predicted_keep_the_reason() -> None:
    tried = []

    def plan_row(row: Any) -> Any:
        if row.row_id == "a-1":
            raise SpecError("a chip\nof no name")
        return Job(row, plan_of(row.row_id))

    def predict(plan: Any, cluster: Any) -> LayoutPrediction:
        tried.append(plan.model.source)
        raise PlanError("does not divide")

    found = predict_rows(rows_of("a-1", "a-2", "a-3"), plan_row=plan_row, predict=predict)
    assert [one.skipped for one in found] == ["a chip of no name", "does not divide", "does not divide"]
    assert all(one.predicted_s is None and one.error == -1.0 for one in found)
    assert tried == ["row a-2"], "what could not be predicted is not tried again"


def test_our_own_mistakes_are_not_skipped_rows() -> None:
    def plan_row(row: Any) -> Any:
        return Job(row, plan_of(row.row_id))

    def predict(plan: Any, cluster: Any) -> LayoutPrediction:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        predict_rows(rows_of("a-1"), plan_row=plan_row, predict=predict)


@pytest.mark.parametrize(
    ("values", "num_bytes"),
    [
        ({"source_repo": "https://github.com/pytorch/torchtitan"}, 60.0),
        ({"source_repo": "https://github.com/pytorch/torchtitan", "note": "max allocated over ranks"}, 50.0),
        ({}, 60.0),
    ],
)
def test_what_was_measured_is_predicted_and_the_middle_where_nobody_knows(
    values: dict[str, str], num_bytes: float
) -> None:
    def plan_row(row: Any) -> Any:
        return Job(row, plan_of(row.row_id), stack="torchtitan compiled", assumptions=("vpp 1",))

    rows: Any = [SampleRow("a-1", values=values)]
    (found,) = predict_rows(rows, plan_row=plan_row, predict=lambda plan, cluster: layout())
    assert found.predicted_peak_bytes == num_bytes and found.upper_peak_bytes == 70.0
    assert (found.low_s, found.high_s, found.basis) == pytest.approx((1.8, 2.2, "interpolated"))
    assert found.assumptions == ("vpp 1",)


def exact(rows: Any, *, progress: Any = None) -> list[RowPrediction]:
    return [
        RowPrediction(row.row_id, row.measured_s, predicted_s=row.measured_s, assumptions=("vpp 1",))
        for row in rows
    ]


def test_several_tables_are_scored_together(tmp_path: Path) -> None:
    first = write_table(
        tmp_path / "a.csv", [table_row("a-1", 1.0), table_row("a-2", 2.0, unheard_of="x")][:1]
    )
    second = write_table(tmp_path / "b.csv", [table_row("b-1", 3.0, unheard_of="x", peak_mem_gib=2.0)])
    found = validate_training([first, second], predictor=exact)
    assert [row["row_id"] for row in found.to_rows()] == ["a-1", "b-1"]
    assert [row["measured_s"] for row in found.to_rows()] == [1.0, 3.0]
    assert found.to_rows()[1]["measured_peak_bytes"] == pytest.approx(2.0 * 2**30)
    assert set(found.summary.sources) == {"a", "b"}
    assert found.assumptions() == ["vpp 1 (2 rows)"]


def test_a_table_of_something_else_is_left_out_beside_others(tmp_path: Path) -> None:
    runs = write_table(tmp_path / "a.csv", [table_row("a-1", 1.0)])
    stages = write_table(tmp_path / "stages.csv", [{"run": "r", "fwd_us_per_stage": "1 2"}])
    found = read_rows([runs, stages])
    assert [row.row_id for row in found.rows] == ["a-1"] and found.left_out == (str(stages),)
    with pytest.raises(SpecError, match="stages.csv"):
        read_rows([stages])


BAD: tuple[dict[str, Any], ...] = (
    {"layers": ""}, {"vocab": ""}, {"gpus": "eight"}, {"step_time_s": ""}, {"seq": 1e300}, {"heads": -1}, {"row_id": ""},
    {"tp": "2.5"}, {"step_time_s": "nan"}, {"measured_value": "x", "step_time_s": ""}, {"hidden": 10**300},
)  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_row_that_cannot_be_read_leaves_the_others(tmp_path: Path, bad: dict[str, Any]) -> None:
    table = write_table(
        tmp_path / "a.csv", [table_row("a-1", 1.0), table_row("a-2", 2.0) | bad, table_row("a-3", 3.0)]
    )
    found = validate_training([table], predictor=exact)
    assert [row["row_id"] for row in found.to_rows()] == ["a-1", "a-3"]
    (unread,) = found.tables.unread
    assert unread.row_id == ("" if "row_id" in bad else "a-2") and unread.source == "a"
    assert "line 3" in unread.why and next(iter(bad)).partition("_")[0] in unread.why


def test_tables_of_which_nothing_can_be_read_are_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.csv", [table_row("a-1", 1.0, layers="")])
    with pytest.raises(SpecError, match="no row can be read, .*line 2: layers is ''"):
        validate_training([table], predictor=exact)


def test_a_row_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.csv", [table_row("a-1", 1.0)])
    with pytest.raises(SpecError, match="a-1 stands in the tables more than once"):
        read_rows([table, table])


def test_no_file_and_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(SpecError, match="No such file"):
        read_rows([tmp_path / "nothing.csv"])
    with pytest.raises(SpecError, match="UTF-8"):
        read_rows([tmp_path / "binary.csv"])
    with pytest.raises(SpecError, match="no table"):
        read_rows([])


def test_the_published_tables_are_read_and_counted_whole(shared_data: Path) -> None:
    found = validate_training(
        sorted((shared_data / "calibration" / "training").glob("*.csv")), predictor=exact
    )
    counts = {name: line.pooled.num_rows for name, line in found.summary.lines.items()}
    assert found.summary.num_rows == 354 and counts["core"] == 230 and counts["not_core"] == 124
    assert counts["moe_newest_release"] == 4, "the README's count of newest MoE rows"
    assert [Path(path).stem for path in found.tables.left_out] == ["vocab_parallel_stage_times"]
    assert {name for name, score in found.summary.sources.items() if score.num_memory_rows} == {
        "simumax_b200",
        "torchtitan",
        "vocab_parallel",
    }
    assert found.summary.lines["core"].average_median_error == 0.0
    assert found.summary.num_pairs > 0 and found.summary.pairs_ordered == 1.0


def test_tables_without_a_row_are_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "head.csv", [table_row("a-1", 1.0)])
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(SpecError, match="no row stands in"):
        read_rows([path])
