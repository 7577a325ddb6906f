"""Fits the constants of training steps on measured runs: few numbers a family of chips, held near what is physical.

Every row's step is simulated at the starting constants and with each of them a little larger. Seconds are almost
linear in them (a step is a sum along its critical path), so the fit works on these derivatives, and is repeated from
where it arrived. Families of chips share a mean that each may leave a little: a chip with few rows stays near it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.costs.step.step_costs import StepConstants

Floats = NDArray[np.float64]
NAMES = tuple(each.name for each in fields(StepConstants))
FAMILIES = ("a100", "h100", "b200")
STEP = 0.02  # relative change of a constant for its derivative
HALF_SCALE = 0.10  # log error from which the robust loss grows linearly


@dataclass(frozen=True)
class Prior:
    """Where a constant is expected, in its own unit, and how far (one standard deviation, in logarithms) the mean of all
    chips and one chip may be from there; `low` and `high` are the ends of what is physical. `of_family`: where a chip's
    own is expected, if something is known of it alone."""

    centre: float
    spread: float
    own_spread: float
    low: float
    high: float
    of_family: Mapping[str, float] = field(default_factory=dict)


# Centres: round figures within the range, where nothing better is known. `of_family`: products of A100 (PCIe) and B200
# and attention of B200 as in SimuMax's system files, whose shapes were timed in a training loop, over our curves of
# single kernels (medians 1.15, 1.37 and 0.8); memory-bound kernels of B200 reach 0.666 of the bandwidth there, our
# curve has 0.85. Portable attention: FlashAttention-3 is 1.5 to 2
# times as fast as its predecessor on Hopper (arXiv 2407.08608); on A100 both are of one generation; on B200 our curve over
# FlashAttention-2 (heads of 64, 4,096 tokens and more; github.com/Dao-AILab/flash-attention, issue 1589) is 1.87, over 0.8.
PRIORS: Mapping[str, Prior] = {
    "matmul": Prior(1.2, 0.15, 0.08, 0.9, 1.8, {"a100": 1.15, "b200": 1.37}),
    "attention": Prior(1.0, 0.2, 0.1, 0.6, 2.5, {"b200": 0.8}),
    "attention_portable": Prior(1.5, 0.25, 0.3, 0.9, 3.5, {"a100": 1.15, "b200": 2.3}),
    "stream": Prior(1.1, 0.3, 0.15, 0.6, 3.0, {"b200": 1.28}),
    "float8": Prior(1.0, 0.2, 0.1, 0.5, 1.6),
    "node_exchange": Prior(1.2, 0.2, 0.15, 0.8, 3.0),
    "network_exchange": Prior(1.2, 0.3, 0.15, 0.7, 4.0),
    "jitter": Prior(0.05, 0.7, 0.2, 1e-5, 0.5),
    "gap_s": Prior(15e-6, 1.0, 0.2, 1e-7, 1e-4),
    "step_s": Prior(30e-3, 1.0, 0.3, 1e-4, 0.2),
    "expert_s": Prior(8e-3, 0.5, 0.2, 1e-5, 2e-2),
}


@dataclass(frozen=True, eq=False)
class Linearised:
    """Steps around constants: seconds [R], derivatives [R, K] by the constants' logarithms, the family of each row."""

    measured_s: Floats
    base_s: Floats
    slopes: Floats
    centres: Floats
    families: tuple[str, ...]

    def predicted(self, logs: Mapping[str, Floats]) -> Floats:
        """Seconds [R] at the logarithms of each family's constants: linear in the constants themselves."""
        theta = np.stack([logs[family] for family in self.families])
        change = (np.exp(theta - self.centres) - 1.0) * self.slopes
        return np.asarray(np.maximum(self.base_s + change.sum(axis=1), 0.05 * self.base_s))

    def take(self, rows: Sequence[int]) -> Linearised:
        """Some of the rows."""
        index = np.array(rows, dtype=np.int64)
        return replace(
            self, measured_s=self.measured_s[index], base_s=self.base_s[index], slopes=self.slopes[index],
            centres=self.centres[index], families=tuple(self.families[i] for i in rows),
        )  # fmt: skip


def start() -> dict[str, StepConstants]:
    """Every family at the centre of what is expected."""
    return {
        family: StepConstants(
            **{name: prior.of_family.get(family, prior.centre) for name, prior in PRIORS.items()}
        )
        for family in FAMILIES
    }


def logarithms(constants: Mapping[str, StepConstants]) -> dict[str, Floats]:
    """Logarithms [K] of each family's constants."""
    return {family: np.log([getattr(each, name) for name in NAMES]) for family, each in constants.items()}


def linearised(
    predictors: Sequence[Callable[[StepConstants], float]],
    measured_s: Sequence[float],
    families: Sequence[str],
    constants: Mapping[str, StepConstants],
) -> Linearised:
    """Simulate every row at its family's constants, and at each of these a little larger."""
    base, slopes, centres = [], [], []
    for predict, family in zip(predictors, families, strict=True):
        at = constants[family]
        seconds = predict(at)
        row = []
        for name in NAMES:
            value = getattr(at, name)
            row.append((predict(replace(at, **{name: value * (1 + STEP)})) - seconds) / STEP)
        base.append(seconds)
        slopes.append(row)
        centres.append(np.log([getattr(at, name) for name in NAMES]))
    return Linearised(
        np.array(measured_s), np.array(base), np.array(slopes), np.array(centres), tuple(families)
    )


def fitted(
    data: Linearised,
    weights: Floats,
    priors: Mapping[str, Prior] = PRIORS,
    all_families: Sequence[str] = FAMILIES,
) -> dict[str, StepConstants]:
    """Constants of every family that make the weighted log errors small, without leaving their priors far."""
    names = list(NAMES)
    size, num = len(names), len(all_families)
    centre = np.log([priors[name].centre for name in names])
    spread = np.array([priors[name].spread for name in names])
    own = np.array([priors[name].own_spread for name in names])
    low = np.log([priors[name].low for name in names])
    high = np.log([priors[name].high for name in names])
    root = np.sqrt(weights)
    known = np.log([[priors[name].of_family.get(f, np.nan) for name in names] for f in all_families])

    def residuals(x: Floats) -> Floats:
        mean, each = x[:size], x[size:].reshape(num, size)
        logs = {family: each[i] for i, family in enumerate(all_families)}
        errors = np.log(data.predicted(logs) / data.measured_s)
        robust = np.sign(errors) * HALF_SCALE * np.sqrt(2 * (np.sqrt(1 + (errors / HALF_SCALE) ** 2) - 1))
        return np.concatenate(
            [
                root * robust / HALF_SCALE,
                (mean - centre) / spread,
                ((each - np.where(np.isnan(known), mean, known)) / own).ravel(),
            ]
        )

    start = np.clip(np.tile(centre, num + 1), low.min(), high.max())
    bounds = (np.tile(low, num + 1) - 1e-9, np.tile(high, num + 1) + 1e-9)
    found = least_squares(residuals, np.clip(start, *bounds), bounds=bounds, max_nfev=200)
    each = np.exp(found.x[size:].reshape(num, size))
    return {
        family: StepConstants(**dict(zip(names, map(float, each[i]), strict=True)))
        for i, family in enumerate(all_families)
    }


def source_weights(sources: Sequence[str]) -> Floats:
    """Every source weighs as the root of its number of rows: many rows of one stack are not as many opinions."""
    number = Counter(sources)
    return np.array([1.0 / np.sqrt(number[source]) for source in sources])
