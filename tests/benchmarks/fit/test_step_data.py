"""Rows ready to be fitted: programs and families, reasons of those that are not, and steps that cannot have been as told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fit.step_data import MOST_UTILISATION, MeasuredStep, measured_steps
from tests.benchmarks.step_sample import step_row, timed

from meshwright.costs.step.step_costs import StepConstants
from meshwright.evidence.tables.table import read_training_table
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_program import simulated_s


def one(**fields: object) -> MeasuredStep:
    (step,), skipped = measured_steps([step_row("ours-1", **fields)])
    assert not skipped
    return step


def seconds_at(step: MeasuredStep, utilisation: float, passes: float) -> float:
    """Seconds in which the devices do `passes` times the forward's arithmetic at this share of their peak."""
    plan, device = step.job.plan, step.job.cluster.devices[0]
    tokens = plan.workload.global_batch * plan.workload.sequence_length
    forward = tokens * plan.model.train_flops_per_token(plan.workload.sequence_length) / 3
    peak = device.peak_flops_per_s("float8" if plan.float8 else plan.dtype)
    return passes * forward / (plan.num_devices * peak * utilisation)


def test_a_row_has_its_plan_its_program_and_the_family_of_its_chip() -> None:
    for gpu, family in (("H100-80GB-SXM", "h100"), ("A100-80GB-SXM", "a100"), ("GB200-NVL72", "b200")):
        step = one(gpu=gpu)
        assert step.family == family and step.row.row_id == "ours-1" and step.job.plan is step.program.plan
        c = StepConstants()
        assert step.predict(c) == simulated_s(step.program, c) > c.step_s


def test_what_cannot_be_planned_or_priced_is_skipped_with_its_reason() -> None:
    told: list[tuple[str, float]] = []
    rows = [
        step_row("ours-1"),
        step_row("ours-2", gpu="abacus"),
        step_row("ours-3", gpu="V100"),
        step_row("ours-4", pp=3, tp=3),
    ]
    steps, skipped = measured_steps(rows, lambda *news: told.append(news))
    assert [step.row.row_id for step in steps] == ["ours-1"]
    assert "abacus" in skipped["ours-2"] and "relative of V100" in skipped["ours-3"]
    assert "do not divide into tp(3) x pp(3)" in skipped["ours-4"]
    assert told == [("ours-1", 0.0), ("ours-2", 0.25), ("ours-3", 0.5), ("ours-4", 0.75)]


def test_our_own_mistakes_are_not_skipped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fit.step_data.step_program", broken)
    with pytest.raises(ZeroDivisionError):
        measured_steps([step_row("ours-1")])


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_declared_full_recompute_faster_than_products_can_be_is_not_fitted(precision: str) -> None:
    step = one(recompute="full", precision=precision)
    assert timed(step, seconds_at(step, MOST_UTILISATION - 0.01, 4)).is_fitted
    wrong = timed(step, seconds_at(step, MOST_UTILISATION + 0.01, 4))
    assert not wrong.is_fitted
    assert predict(wrong.job.plan, wrong.job.cluster).step.value > 0, "it is predicted all the same"


def test_only_declared_full_recompute_is_doubted() -> None:
    for recompute in ("none", "selective"):
        step = one(recompute=recompute)
        assert timed(step, seconds_at(step, 0.95, 4)).is_fitted


def test_broadcasts_of_every_member_over_nodes_are_told_and_not_fitted() -> None:
    """In a node they take what a gather takes."""
    words = {"extras": "InternEvo", "zero": 1}
    for num_devices, is_fitted in ((8, True), (64, False)):
        step = one(
            gpus=num_devices,
            dp=num_devices,
            global_batch_seqs=128,
            num_microbatches=128 // num_devices,
            **words,
        )
        assert step.is_fitted is is_fitted
        assert any(f"by {num_devices} broadcasts" in line for line in step.job.assumptions) is not is_fitted


def test_equal_rows_of_another_time_have_equal_programs() -> None:
    first, second = one(), one(seconds=9.0)
    assert first.program.plan == second.program.plan and second.row.measured_s == 9.0
    assert first.predict(StepConstants()) == second.predict(StepConstants())
    assert replace(first, family="a100").predict(StepConstants()) == first.predict(StepConstants())


def test_published_rows_that_cannot_have_recomputed_all_are_found(shared_data: Path) -> None:
    """The README's warning: some rows of one source imply 75 to 78 % of the peak."""
    table = read_training_table(shared_data / "calibration" / "training" / "mosaic.csv")
    full = [row for row in table if row.is_core and row.text("recompute") == "full"]
    chosen = sorted(full, key=lambda row: -row.number("model_tflops_per_gpu"))
    a100 = [row for row in chosen if row.text("gpu").startswith("A100")]
    steps, skipped = measured_steps([*a100[:3], *a100[-3:]])
    assert not skipped
    assert [step.is_fitted for step in steps] == [False] * 3 + [True] * 3
