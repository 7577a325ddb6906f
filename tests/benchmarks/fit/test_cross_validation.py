"""Cross-validation: what is left out says nothing about its own prediction, and everything about the others'."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fit.cross_validation import (
    By,
    Folds,
    chosen_class_predictions,
    cross_validate,
    folds_of,
    group_of,
    left_out_predictions,
)
from fit.fit_widths import EXPECTED
from fit.step_data import measured_steps
from tests.benchmarks.step_sample import (
    JOBS,
    SOURCES,
    TRUE,
    made_steps,
    noise,
    step_row,
    three_sources,
    timed,
)

from meshwright.evidence.tables.table import TrainingRow, read_training_table
from meshwright.prediction.step_program import simulated_s, step_program
from meshwright.specs.error import SpecError


@cache
def folds() -> Folds:
    return folds_of(made_steps(three_sources(), noise))


def twice(found: Folds, name: str, by: By) -> Folds:
    """The same folds, as if all rows of a group took twice as long."""
    factors = np.array([2.0 if group_of(step.row, by) == name else 1.0 for step in found.steps])
    steps = tuple(timed(s, s.row.measured_s * factor) for s, factor in zip(found.steps, factors, strict=True))
    return replace(found, steps=steps, data=replace(found.data, measured_s=found.data.measured_s * factors))


@pytest.mark.parametrize(("by", "name"), [("source", "a"), ("source", "c"), ("model", "deep")])
def test_rows_say_nothing_about_their_own_prediction(by: By, name: str) -> None:
    before, after = left_out_predictions(folds(), by), left_out_predictions(twice(folds(), name, by), by)
    own = {step.row.row_id for step in folds().steps if group_of(step.row, by) == name}
    assert len(before) == 9 and len(own) == 3
    for row_id, estimate in before.items():
        if row_id in own:
            assert after[row_id].step == estimate.step
        else:
            assert abs(after[row_id].step.value / estimate.step.value - 1) > 0.01


def test_nor_do_they_through_the_point_at_which_steps_are_linearised() -> None:
    """All rows choose that point; steps are so nearly linear that it moves their own prediction by less than 0.2 %."""

    def factor(row: TrainingRow) -> float:
        return noise(row) * (2.0 if row.source == "a" else 1.0)

    before = left_out_predictions(folds(), "source")
    after = left_out_predictions(folds_of(made_steps(three_sources(), factor)), "source")
    for row_id, estimate in before.items():
        moved = abs(after[row_id].step.value / estimate.step.value - 1)
        assert moved < 0.002 if row_id.startswith("a") else moved > 0.05


def test_steps_of_the_model_itself_are_predicted_from_other_sources() -> None:
    for row_id, estimate in left_out_predictions(folds(), "source").items():
        (step,) = (each for each in folds().steps if each.row.row_id == row_id)
        assert estimate.step.value == pytest.approx(step.row.measured_s, rel=0.12)


def test_groups_are_sources_or_models() -> None:
    row = step_row("some-name-7", model=" Llama ")
    assert (group_of(row, "source"), group_of(row, "model")) == ("some-name", "llama")


def test_folds_have_what_is_fitted() -> None:
    found = folds()
    assert len(found.steps) == len(found.data.measured_s) == len(SOURCES) * len(JOBS)
    fit = found.fit()
    assert fit.width == EXPECTED, "how wide intervals are is fitted apart"
    assert fit.constants["h100"] != found.fit(("a",)).constants["h100"]
    assert found.fit(("nobody",)).constants == fit.constants


def test_rows_that_cannot_have_been_as_told_are_predicted_and_not_fitted() -> None:
    found = folds()
    place = next(i for i, step in enumerate(found.steps) if step.row.row_id == "a-1")
    steps = list(found.steps)
    whole = step_row("a-1", **{**SOURCES["a"], **JOBS[1], "recompute": "full"})
    (wrong,), _ = measured_steps([whole])
    assert not timed(wrong, 1e-3).is_fitted

    def fit(seconds: float) -> Folds:
        steps[place] = timed(wrong, seconds)
        measured = found.data.measured_s.copy()
        measured[place] = seconds
        return replace(found, steps=tuple(steps), data=replace(found.data, measured_s=measured))

    assert fit(1e-3).fit().constants == fit(5e-4).fit().constants
    assert fit(1.0).fit().constants != fit(1e-3).fit().constants, "a slow one is fitted"
    assert "a-1" in left_out_predictions(fit(1e-3), "source")


def test_fewer_than_two_sources_are_not_enough_to_fit_on() -> None:
    few = folds_of(folds().steps[:3])
    with pytest.raises(SpecError, match=r"1 source\(s\).*two sources or more.*another source"):
        few.fit()
    with pytest.raises(SpecError, match=r"0 source\(s\)"):
        few.fit(("a",))


def test_progress_is_told_for_both_rounds() -> None:
    told: list[tuple[str, float]] = []
    folds_of(folds().steps[:3], lambda *news: told.append(news))
    assert [share for _, share in told] == [0.0, 0.5] and all("3 steps" in text for text, _ in told)


def test_published_rows_of_three_sources_are_predicted_from_each_other(shared_data: Path) -> None:
    folder = shared_data / "calibration" / "training"
    rows = []
    for name in ("torchtitan", "mosaic", "megatron_h100"):
        core = [row for row in read_training_table(folder / f"{name}.csv") if row.is_core]
        rows += sorted(core, key=lambda row: (row.count("gpus") * row.count("layers"), row.row_id))[:2]
    found = cross_validate(rows, "source")
    assert set(found) == {row.row_id for row in rows}
    assert all(0.4 < found[row.row_id] / row.measured_s < 2.5 for row in rows)


def test_three_rows_of_a_source_choose_its_class_for_the_others() -> None:
    """Source d has a fourth job, and software that its table does not name."""
    rows = [*three_sources(), *(step_row(f"d-{i}", **job) for i, job in enumerate((*JOBS, {"seq": 8192})))]
    steps, _ = measured_steps(rows)
    made = {
        step.row.row_id: simulated_s(
            step_program(step.job.plan.changed(software="fused"), step.job.cluster), TRUE
        )
        for step in steps
    }
    rows = [replace(row, measured_s=made[row.row_id]) for row in rows]
    chosen, default = chosen_class_predictions(rows), cross_validate(rows, "source")
    assert set(chosen) == {"d-3"}, "sources of three rows have none left"
    assert abs(chosen["d-3"] / made["d-3"] - 1) < abs(default["d-3"] / made["d-3"] - 1)
