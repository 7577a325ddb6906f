"""ServingStep: how a replica runs the rows of a step (the slot `step`): all at once, or in parts that share its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.step_model import TimedSteps
from meshwright.specs.slot import Reference, resolve


class ServingStep(Protocol):
    """A way to run a step."""

    def of(self, program: ForwardProgram, limits: Limits) -> TimedSteps:
        """Steps of a replica, whose largest batch has these limits. Raises PlanError where its devices cannot run so."""
        ...


@dataclass(frozen=True)
class WholeBatch:
    """Every kernel of a step runs once, on all of its rows, one behind the other."""

    def of(self, program: ForwardProgram, limits: Limits) -> TimedSteps:
        """The program itself."""
        return program


WHOLE = "whole"
STEPS: Mapping[str, type[ServingStep]] = {WHOLE: WholeBatch}


def step_named(reference: str) -> ServingStep:
    """What stands behind a name of the slot. Raises PlanError where nobody knows it."""
    name = Reference.of(reference).name
    if name in STEPS and reference == name:
        return STEPS[name]()
    found: ServingStep = resolve("step", reference)
    return found
