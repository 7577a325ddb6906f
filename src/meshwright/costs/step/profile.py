"""StepProfile: the constants of training steps for each family of chips, and how wide predictions are; package data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from meshwright.costs.cost import rounded
from meshwright.costs.step.step_costs import StepConstants
from meshwright.specs.error import SpecError, UnknownNameError

STEP_PROFILE_SCHEMA = 2
DIGITS = 5
# Of the fits without a group of rows, beside those without a source: the one without any row of more devices than this.
MOST_FITTED_DEVICES, MANY_DEVICES = 64, "more than 64 devices"
LEAST_DEVIATION = 0.02  # of a step's logarithm: a run repeats to about 2 %
NORMAL_END = 1.2816  # of 80 % of a normal distribution, in deviations


@dataclass(frozen=True)
class Width:
    """How far steps of a stack that no fit has seen are from what is predicted of them.

    Attributes:
        spreads: by kind of work (`prediction.step_trait`) the standard deviation, over stacks, of the logarithm of what one
            takes for it over what is expected.
        low, high: ends of the 80 % interval, in deviations of the step's logarithm. Not of one size: steps are longer than
            predicted more often, and by more, than shorter.

    Who knows more of a stack than its kind gives `StepFit` a width with smaller spreads.
    """

    spreads: Mapping[str, float]
    low: float = -NORMAL_END
    high: float = NORMAL_END

    def __post_init__(self) -> None:
        if not (self.low < 0 < self.high and all(spread >= 0 for spread in self.spreads.values())):
            raise SpecError(
                f"a width from {self.low:g} to {self.high:g} deviations of {dict(self.spreads)}",
                allowed="low below 0, high above, and spreads from 0",
            )

    def deviation(self, shares: Mapping[str, float]) -> float:
        """Of the logarithm of a step with these shares of kinds of work, of which each is as far off as it likes."""
        each = (spread * shares.get(name, 0.0) for name, spread in self.spreads.items())
        return max(math.hypot(*each), LEAST_DEVIATION)

    def ends(self, shares: Mapping[str, float]) -> tuple[float, float]:
        """The interval's ends over the predicted step, one below 1 and one above."""
        deviation = self.deviation(shares)
        return math.exp(self.low * deviation), math.exp(self.high * deviation)


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
    and kinds of model ran. `widths` are without one source each of those that say how wide intervals are, but took no part in
    the constants."""

    fit: StepFit
    left_out: Mapping[str, StepFit]
    seen: Mapping[str, Mapping[str, Any]]
    source: str = ""
    widths: Mapping[str, Width] = field(default_factory=dict)

    def blind_to(self, source: str) -> StepFit:
        """What is known without a source, whatever it took part in; of one that nobody knows, everything."""
        if source in self.left_out:
            return self.left_out[source]
        return StepFit(self.fit.constants, self.widths.get(source, self.fit.width))

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
            "widths": {name: rounded(asdict(each), DIGITS) for name, each in self.widths.items()},
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
            {name: Width(**each) for name, each in table["widths"].items()},
        )


def _fit_from_dict(table: Mapping[str, Any]) -> StepFit:
    constants = {family: StepConstants(**each) for family, each in table["constants"].items()}
    return StepFit(constants, Width(**table["width"]))


@cache
def packaged_step_profile() -> StepProfile:
    """The profile that comes with the package (see benchmarks/fit/fit_steps.py)."""
    text = (resources.files("meshwright.costs") / "profiles" / "steps.json").read_text(encoding="utf-8")
    return StepProfile.from_dict(json.loads(text))
