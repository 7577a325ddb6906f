"""OwnRun: one measured run of a user's own beside what was predicted of it: what a stack is learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.specs.error import SpecError


@dataclass(frozen=True)
class OwnRun:
    """A run and its prediction.

    Attributes:
        name: for people: the log or the row that it is of.
        measured_s, predicted_s: seconds of a step.
        parts: predicted seconds of the busiest device by kind of work, as of `prediction.step_part`.
        traits: what its plan is, by name, as of `prediction.own_runs.trait`.

    Raises SpecError where a time is not a positive number, or nothing is known of its parts.
    """

    name: str
    measured_s: float
    predicted_s: float
    parts: Mapping[str, float] = field(hash=False)
    traits: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for said, seconds in (("measured", self.measured_s), ("predicted", self.predicted_s)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise SpecError(f"run {self.name}: {said} step {seconds!r} s", allowed="seconds above 0")
        numbers = [*self.parts.values(), *self.traits.values()]
        if not all(math.isfinite(number) for number in numbers) or min(self.parts.values(), default=0.0) < 0:
            raise SpecError(
                f"run {self.name} has parts {dict(self.parts)} and traits {dict(self.traits)}",
                allowed="finite numbers, parts from 0",
            )

    @property
    def ratio(self) -> float:
        """Measured / predicted."""
        return self.measured_s / self.predicted_s
