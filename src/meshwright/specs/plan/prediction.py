"""Prediction: a number with its interval and what it rests on; no number is told without."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from meshwright.specs.error import SpecError

Basis = Literal["measured here", "interpolated", "extrapolated", "never seen"]
BASES: tuple[Basis, ...] = ("measured here", "interpolated", "extrapolated", "never seen")  # best first


@dataclass(frozen=True, slots=True)
class Prediction:
    """`value` in SI units, expected between `low` and `high`, resting on `basis`.

    Raises SpecError unless low <= value <= high and the basis is one of BASES.
    """

    value: float
    low: float
    high: float
    basis: Basis

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise SpecError(f"basis {self.basis!r} is not known", allowed=", ".join(BASES))
        if not self.low <= self.value <= self.high:
            raise SpecError(
                f"prediction {self.value:g} lies outside its interval {self.low:g} to {self.high:g}",
                allowed="low <= value <= high",
            )

    @classmethod
    def within(cls, value: float, relative_error: float, basis: Basis) -> Prediction:
        """An interval of `relative_error` (0.1 is 10 %) to both sides of `value`."""
        if not relative_error >= 0 or math.isnan(value):
            raise SpecError(f"relative error {relative_error!r} of {value!r}", allowed="an error from 0")
        half = abs(value) * relative_error
        return cls(value, value - half, value + half, basis)

    def scaled(self, factor: float) -> Prediction:
        """The same prediction in other units, or of `factor` times as much."""
        ends = sorted((self.low * factor, self.high * factor))
        return Prediction(self.value * factor, ends[0], ends[1], self.basis)

    def contains(self, measured: float) -> bool:
        """Did the measurement fall into the interval?"""
        return self.low <= measured <= self.high

    def __add__(self, other: Prediction) -> Prediction:
        """Sum of two predictions: intervals add (errors are not independent), the weaker basis holds."""
        low, high = self.low + other.low, self.high + other.high
        return Prediction(self.value + other.value, low, high, weakest(self.basis, other.basis))


def weakest(*bases: Basis) -> Basis:
    """The basis that rests on least; "measured here" when there is none."""
    return BASES[max((BASES.index(basis) for basis in bases), default=0)]
