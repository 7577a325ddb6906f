"""Controller: who decides the program of every step, the next one while the last one runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from meshwright.ir.program import Program
from meshwright.specs.sequence.sequence_group import GroupedBatch


class StepSeconds(NamedTuple):
    """A step that has ended, by its number since the very first: what it was predicted to take, and took."""

    step: int
    predicted_s: float
    measured_s: float


class ControlledStep(NamedTuple):
    """What the ranks do in a step, with which of its sequences, and what that is predicted to take."""

    program: Program
    groups: GroupedBatch
    predicted_s: float


class Controller(Protocol):
    """Makes the program of a step; it is asked in a thread of its own, for one step after the other."""

    def next(self, step: int, observations: Sequence[StepSeconds]) -> ControlledStep:
        """Of step `step` of the training; ``observations``: of those that have ended, in order. All programs have the same
        parameter groups and need the same process groups, which are made once.

        Raises MeshwrightError where there is none: the training then ends.
        """
        ...
