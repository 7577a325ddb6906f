"""Made-up sources of measured steps: small plans whose seconds the model itself makes, from constants that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fit.step_data import MeasuredStep, measured_steps
from tests.evidence.training_sample import table_row

from meshwright.costs.step.step_costs import StepConstants
from meshwright.evidence.tables.table import TrainingRow, training_row

SMALL = {
    "layers": 4, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 5632, "vocab": 32000, "seq": 2048,
    "recompute": "none", "extras": "", "schedule": "",
}  # fmt: skip
TRUE = StepConstants(matmul=1.35, attention=1.2, stream=1.2, step_s=0.02)
# Source -> its machine and layout; each has a short, a long and a deep job.
SOURCES: dict[str, dict[str, Any]] = {
    "a": {"schedule": "fsdp2", "extras": "compile"},
    "b": {"extras": "Megatron-LM", "zero": 1, "pp": 2, "dp": 4, "num_microbatches": 4},
    "c": {
        "extras": "Megatron-LM",
        "gpu": "A100-80GB-SXM",
        "zero": 0,
        "tp": 2,
        "dp": 4,
        "num_microbatches": 4,
    },
}
JOBS: tuple[dict[str, Any], ...] = (
    {"model": "short"},
    {"model": "deep", "layers": 8},
    {"model": "long", "seq": 4096},
)


def step_row(row_id: str, seconds: float = 1.0, **fields: Any) -> TrainingRow:
    """A row of a small job as it is read from a table."""
    values = {
        column: str(value) for column, value in table_row(row_id, seconds, **{**SMALL, **fields}).items()
    }
    return training_row(values, f"made up, {row_id}", row_id.rpartition("-")[0])


def made_steps(
    rows: Sequence[TrainingRow], factor: Callable[[TrainingRow], float] = lambda row: 1.0
) -> list[MeasuredStep]:
    """The rows, as if steps took what the model says at TRUE, times a factor of each."""
    steps, skipped = measured_steps(rows)
    assert not skipped
    return [timed(step, step.predict(TRUE) * factor(step.row)) for step in steps]


def timed(step: MeasuredStep, seconds: float) -> MeasuredStep:
    """The same step, measured to take `seconds`."""
    return replace(step, job=replace(step.job, row=replace(step.row, measured_s=seconds)))


def three_sources() -> list[TrainingRow]:
    """Nine rows."""
    return [
        step_row(f"{source}-{number}", **{**layout, **job})
        for source, layout in SOURCES.items()
        for number, job in enumerate(JOBS)
    ]


def noise(row: TrainingRow) -> float:
    """A few per cent, the same for the same row."""
    return 1.0 + 0.02 * math.sin(37.0 * sum(map(ord, row.row_id)))
