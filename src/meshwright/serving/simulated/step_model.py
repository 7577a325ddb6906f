"""StepModel: what a simulated engine asks how long steps take."""

from __future__ import annotations

from typing import Protocol

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime


class TimedSteps(Protocol):
    """Steps whose seconds are told one by one; a `ForwardProgram` has them."""

    def step(self, batch: BatchShape) -> StepTime:
        """Of one batch."""
        ...


class StepModel(Protocol):
    """Seconds of steps; the table is one, `EveryStep` another."""

    def step(self, batch: BatchShape) -> StepTime:
        """Of one batch."""
        ...

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """Steps of the same decodes one behind the other, each with one token more a sequence: how many, at most `most`,
        begin before `span_s` is over, but at least one; and their seconds."""
        ...


class EveryStep:
    """Simulates every batch that differs from all before it."""

    def __init__(self, steps: TimedSteps) -> None:
        self._steps = steps

    def step(self, batch: BatchShape) -> StepTime:
        """Of one batch."""
        return self._steps.step(batch)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """Step by step."""
        return run_one_by_one(self, num_decodes, num_context, most, span_s)


def run_one_by_one(
    steps: TimedSteps, num_decodes: int, num_context: int, most: int, span_s: float
) -> tuple[int, float]:
    """`StepModel.run` of steps of which no sum is known."""
    seconds, number = 0.0, 0
    while number == 0 or (number < most and seconds < span_s):
        batch = BatchShape(num_decodes=num_decodes, num_context=num_context + number * num_decodes)
        seconds += steps.step(batch).latency_s
        number += 1
    return number, seconds
