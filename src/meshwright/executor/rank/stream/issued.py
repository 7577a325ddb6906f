"""A row under way: its inputs, what posting and finishing it do, and the error that names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Pending
from meshwright.executor.rank.rank_list import Step
from meshwright.executor.rank.stream.row_times import Times, clock
from meshwright.executor.rank.value_store import Line, put_all


class RowError(Exception):
    """A handler failed: which row, in which iteration; the cause is chained."""

    def __init__(self, step: Step, iteration: int) -> None:
        super().__init__(f"{step.row.text}, iteration {iteration}")
        self.step, self.iteration = step, iteration


class Issued:
    """A row that the host has reached, with the inputs it took from the store."""

    __slots__ = ("step", "inputs", "line", "times", "iteration")

    def __init__(self, step: Step, inputs: list[Any], line: Line, times: Times, iteration: int) -> None:
        self.step, self.inputs, self.line, self.times, self.iteration = step, inputs, line, times, iteration

    def post(self, context: Context) -> Sequence[Any] | Pending:
        """Begin it: what its handler returns."""
        step, times = self.step, self.times
        times.posted[step.row.number] = times.start[step.row.number] = clock()
        return step.handler(context, step.row, self.inputs)

    def finish(self, outputs: Sequence[Any]) -> None:
        """Store what it wrote, let go of what it read, and note its end."""
        step = self.step
        put_all(self.line, step.writes, outputs, step.row.text)
        self.inputs.clear()
        self.times.end[step.row.number] = clock()
