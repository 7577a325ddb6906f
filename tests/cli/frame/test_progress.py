"""The live line of a training: what stands on 80 columns, and what a log gets."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from meshwright.api.trainings.metrics import StepMetrics
from meshwright.cli.frame import progress
from meshwright.cli.frame.output import Output
from meshwright.cli.frame.progress import LiveLine, TrainingLine


class Terminal:
    """Keeps what a live line of so many columns is told."""

    def __init__(self, width: int) -> None:
        self.console = Console(file=io.StringIO(), width=width)
        self.said: list[str] = []

    def update(self, text: Any, refresh: bool) -> None:
        self.said.append(text.plain)


def step(number: int, **fields: Any) -> StepMetrics:
    given = {"mfu": 0.55, "left_s": 725.0, "seconds": 0.5, **fields}
    return StepMetrics(
        **{
            "number": number, "loss": 5.3354, "learning_rate": 1e-3, "gradient_norm": 1.0, "tokens": 6000,
            "total_tokens": 6000, "predicted_s": 0.5, "tokens_per_s": 6000 / given["seconds"],
            "flops_per_s_per_device": 2e9 * 0.5 / given["seconds"], **given,
        }
    )  # fmt: skip


def line_of(width: int) -> tuple[TrainingLine, list[str]]:
    terminal = Terminal(width)
    return TrainingLine(LiveLine(Output(), terminal)), terminal.said


def test_a_line_fits_into_80_columns_and_tells_the_least_last() -> None:
    line, said = line_of(80)
    line(step(1233, held_out_loss=5.3249))
    assert said[-1] == "step 1234  loss 5.335  held out 5.325  12,000 tokens/s  12:05 min left  MFU 55 %"
    line(step(100_000))
    assert said[-1].endswith("12:05 min left") and len(said[-1]) <= 80
    wide, told = line_of(90)
    wide(step(1, seconds=0.25))
    wide(step(2))
    assert told[-1].endswith("MFU 55 %  2 GFLOP/s")
    narrow, told = line_of(20)
    narrow(step(1))
    assert told == ["step    2"]


def test_the_first_step_holds_the_start_and_does_not_count() -> None:
    line, said = line_of(200)
    line(step(0, seconds=60.0))
    assert "100 tokens/s" in said[-1]
    line(step(1))
    assert "12,000 tokens/s" in said[-1]
    line(step(2, seconds=1.0))
    assert "8,000 tokens/s" in said[-1]


def test_a_log_gets_every_stage_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("meshwright.cli.frame.progress.time.monotonic", lambda: now[0])
    line = LiveLine(Output(), None)
    line.stage("making tokens of text, 1%")
    line.stage("making tokens of text, 2%")
    now[0] += progress.LOG_EVERY_S
    line.stage("making tokens of text, 70%")
    line.stage("starting 2 processes")
    said = capsys.readouterr().err.splitlines()
    assert said == ["making tokens of text, 1%", "making tokens of text, 70%", "starting 2 processes"]
