"""StepFeed: asks a controller for the programs of steps, ahead of the ranks, and writes them where these read them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.executor.job.changing.controller import ControlledStep, Controller, StepSeconds
from meshwright.executor.job.job import of_ranks
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.specs.error import ExecutionError
from meshwright.specs.record import record
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.whole_file import whole_file

AHEAD = 1  # steps whose programs are made while one runs


def step_file(folder: Path, iteration: int) -> Path:
    """Where the program of an iteration of the job is."""
    return folder / f"step-{iteration}.json"


def read_step(path: Path) -> tuple[Program, GroupedBatch]:
    """What `StepFeed` wrote."""
    told: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return from_text(told["program"]), record(GroupedBatch, told["groups"], path.name, ExecutionError)


class StepFeed:
    """A context: while it is open, a thread makes the programs of a job's iterations, at most `AHEAD` of the one that runs.

    ``steps``: by iteration, of those that have not ended yet, and the last one that has.
    """

    def __init__(self, controller: Controller, folder: Path, first_step: int, iterations: int) -> None:
        self._controller, self._folder = controller, folder
        self._first_step, self._iterations = first_step, iterations
        self.steps: dict[int, ControlledStep] = {0: self._asked(0, ())}
        self.error: Exception | None = None
        self._ended: list[StepSeconds] = []
        self._turn, self._is_over = threading.Condition(), False
        self._thread = threading.Thread(target=self._make, name="programs of steps", daemon=True)

    def __enter__(self) -> StepFeed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._is_over = True
            self._turn.notify()
        self._thread.join()

    def ended(self, iteration: int, seconds: float) -> None:
        """An iteration has ended on all ranks."""
        with self._turn:
            self._ended.append(
                StepSeconds(self._first_step + iteration, self.steps[iteration].predicted_s, seconds)
            )
            self.steps.pop(iteration - 1, None)
            self._turn.notify()
        step_file(self._folder, iteration).unlink(missing_ok=True)  # all ranks have read it

    def _asked(self, iteration: int, observations: tuple[StepSeconds, ...]) -> ControlledStep:
        made = self._controller.next(self._first_step + iteration, observations)
        return made._replace(program=of_ranks(made.program))

    def _make(self) -> None:
        try:
            for iteration in range(1, self._iterations):
                with self._turn:
                    self._turn.wait_for(lambda: self._is_over or iteration <= len(self._ended) + AHEAD)  # noqa: B023
                    if self._is_over:
                        return
                    observations = tuple(self._ended)
                made = self._asked(iteration, observations)
                self.steps[iteration] = made
                told = {"program": to_text(made.program), "groups": asdict(made.groups)}
                with whole_file(step_file(self._folder, iteration)) as file:
                    file.write_text(json.dumps(told), encoding="utf-8")
        except Exception as error:  # the thread that follows the ranks raises it
            self.error = error
