"""Metrics of a step, their file, and what a training that goes on keeps of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright.api.trainings.held_file import is_held
from meshwright.api.trainings.metrics import Meter, MetricsFile, StepMetrics
from meshwright.executor.job.gather import Iteration
from meshwright.specs.error import SpecError
from meshwright.specs.plan.utilisation import StepFlops
from meshwright.specs.training.learning_rate import LearningRate


def iteration(number: int, **fields: Any) -> Iteration:
    return Iteration(
        **{
            "number": number,
            "loss": 5.0,
            "gradient_norm": 1.0,
            "tokens": 100,
            "seconds": 0.5,
            "end_s": 0.5 * number,
            **fields,
        }
    )


def seen_by(meter: Meter, iterations: list[Iteration]) -> list[StepMetrics]:
    seen: list[StepMetrics] = []
    follow = meter.follow(seen.append)
    for one in iterations:
        follow(one)
    return seen


def test_a_step_says_where_it_is_in_the_whole_training() -> None:
    meter = Meter(
        LearningRate(1.0, num_warmup=20), 0.25, StepFlops(300.0, 6_000.0), first_step=10, num_steps=20
    )
    seen = seen_by(meter, [iteration(0, seconds=9.0), iteration(1), iteration(2)])
    last = seen[-1]
    assert last.number == 12 and last.total_tokens == 1300 and last.learning_rate == 13 / 20
    assert last.tokens_per_s == 200 and last.flops_per_s_per_device == 600 and last.mfu == 0.1
    assert last.left_s == pytest.approx(7 * 0.5)  # the first iteration holds the start of the job
    row = last.to_dict()
    assert (row["step"], row["measured_s"], row["predicted_s"]) == (13, 0.5, 0.25)
    assert "held_out_loss" not in row and "num_undone" not in row


def test_the_first_step_holds_the_start_and_says_nothing_of_the_time_left() -> None:
    meter = Meter(LearningRate(1.0), 0.25, StepFlops(1.0), num_steps=5)
    assert seen_by(meter, [iteration(0, seconds=9.0)])[0].left_s == 4 * 0.25


def test_the_clock_is_an_end_too_and_evaluations_count() -> None:
    meter = Meter(LearningRate(1.0), 0.1, StepFlops(1.0), num_steps=1000, duration_s=3.0)
    last = seen_by(meter, [iteration(0), iteration(1, held_out_loss=4.0, paused_s=0.75)])[-1]
    assert last.left_s == pytest.approx(3.0 - 1.75) and last.mfu is None
    assert last.to_dict()["held_out_loss"] == 4.0
    assert seen_by(Meter(LearningRate(1.0), 0.1, StepFlops(1.0)), [iteration(0)])[0].left_s is None


def metrics(number: int, loss: float = 5.0) -> StepMetrics:
    return seen_by(Meter(LearningRate(1.0), 0.1, StepFlops(1.0), number), [iteration(0, loss=loss)])[0]


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_training_that_goes_on_drops_what_it_does_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    first = MetricsFile(path)
    for number in range(5):
        first(metrics(number, loss=1.0))
    first.close()
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # the crash
    second = MetricsFile(path, first_step=3, resumes=True)
    second(metrics(3, loss=2.0))
    assert is_held(path), "who follows it sees that the training goes on"
    second.close()
    assert not is_held(path)
    assert [(row["step"], row["loss"]) for row in written(path)] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_a_file_of_another_training_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("something else\nand more\n")
    with pytest.raises(SpecError, match="is there already"):
        MetricsFile(path)
    with pytest.raises(SpecError, match="line 1"):
        MetricsFile(path, first_step=3, resumes=True)
    assert path.read_text() == "something else\nand more\n"
    with pytest.raises(SpecError, match="cannot be written"):
        MetricsFile(tmp_path / "none" / "m.jsonl")


def test_a_number_that_is_none_is_null(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    file = MetricsFile(path)
    file(metrics(0, loss=math.nan))
    file.close()
    assert written(path)[0]["loss"] is None
