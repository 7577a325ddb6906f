"""StepProfile: the constants of training steps for each family of chips, and how wide predictions are; package data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from meshwright.costs.cost import rounded
from meshwright.costs.step.step_costs import StepConstants
from meshwright.specs.error import SpecError, UnknownNameError

STEP_PROFILE_SCHEMA = 1
DIGITS = 5
# Of the fits without a group of rows, beside those without a source: the one without any row of more devices than this.
MOST_FITTED_DEVICES, MANY_DEVICES = 64, "more than 64 devices"
LEAST_HALF_WIDTH, MOST_HALF_WIDTH = 0.02, 0.60  # relative; a run repeats to about 2 %


@dataclass(frozen=True)
class Width:
    """Half width of the 80 % interval, as a linear function of what a plan has: `base` and `slopes` by name of a trait."""

    base: float
    slopes: Mapping[str, float] = field(default_factory=dict)

    def at(self, traits: Mapping[str, float]) -> float:
        """Relative half width for these traits (see `planner.step_trait`)."""
        width = self.base + sum(slope * traits.get(name, 0.0) for name, slope in self.slopes.items())
        return min(max(width, LEAST_HALF_WIDTH), MOST_HALF_WIDTH)


@dataclass(frozen=True)
class StepFit:
    """What one fit gave: constants by family of chips, and the width of its intervals."""

    constants: Mapping[str, StepConstants]
    width: Width

    def of(self, family: str) -> StepConstants:
        """Constants of a family. Raises UnknownNameError."""
        if family not in self.constants:
            raise UnknownNameError("family of chips", family, sorted(self.constants))
        return self.constants[family]

    @property
    def typical(self) -> StepConstants:
        """Constants of a family in which no step was measured: of each the median of those in which steps were."""
        names = [each.name for each in fields(StepConstants)]
        measured = self.constants.values()
        return StepConstants(**{name: median(getattr(each, name) for each in measured) for name in names})


@dataclass(frozen=True)
class StepProfile:
    """The fit on all rows, the fits without one source each (for whoever has to predict a row it was not fitted on) and
    without those of MANY_DEVICES, and on what: `seen` has for each device the largest number of them, and which precisions
    and kinds of model ran."""

    fit: StepFit
    left_out: Mapping[str, StepFit]
    seen: Mapping[str, Mapping[str, Any]]
    source: str = ""

    def without(self, source: str) -> StepFit:
        """The fit without a source, or MANY_DEVICES; of all rows where it is empty. Raises UnknownNameError."""
        if not source:
            return self.fit
        if source not in self.left_out:
            raise UnknownNameError("source of measured steps", source, sorted(self.left_out))
        return self.left_out[source]

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "schema": STEP_PROFILE_SCHEMA,
            "source": self.source,
            "seen": {name: dict(each) for name, each in self.seen.items()},
            "fit": rounded(asdict(self.fit), DIGITS),
            "left_out": {name: rounded(asdict(each), DIGITS) for name, each in self.left_out.items()},
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> StepProfile:
        """From a file. Raises SpecError on another schema."""
        if table.get("schema") != STEP_PROFILE_SCHEMA:
            raise SpecError(
                f"a step profile of schema {table.get('schema')!r}", allowed=f"schema {STEP_PROFILE_SCHEMA}"
            )
        return cls(
            _fit_from_dict(table["fit"]),
            {name: _fit_from_dict(each) for name, each in table["left_out"].items()},
            table["seen"],
            table.get("source", ""),
        )


def _fit_from_dict(table: Mapping[str, Any]) -> StepFit:
    constants = {family: StepConstants(**each) for family, each in table["constants"].items()}
    return StepFit(constants, Width(table["width"]["base"], table["width"]["slopes"]))


@cache
def packaged_step_profile() -> StepProfile:
    """The profile that comes with the package (see benchmarks/fit/fit_steps.py)."""
    text = (resources.files("meshwright.costs") / "profiles" / "steps.json").read_text(encoding="utf-8")
    return StepProfile.from_dict(json.loads(text))
