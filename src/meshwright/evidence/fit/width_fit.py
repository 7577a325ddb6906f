"""Fits the half width of intervals: the least one, linear in traits of a plan, that contains a share of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linprog

from meshwright.costs.step.profile import Width


def width_of(
    errors: Sequence[float], traits: Sequence[Mapping[str, float]], names: Sequence[str], share: float
) -> Width:
    """The linear half width that contains `share` of the absolute errors and is narrow elsewhere: quantile regression,
    as a linear program over base and slopes, which are not negative."""
    size = len(errors)
    columns = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each in traits])
    above, below = np.full(size, share / size), np.full(size, (1.0 - share) / size)
    cost = np.concatenate([np.full(columns.shape[1], 1e-6), above, below])
    equal = np.hstack([columns, np.eye(size), -np.eye(size)])
    found = linprog(cost, A_eq=equal, b_eq=np.abs(errors), bounds=(0, None), method="highs")
    base, *slopes = map(float, found.x[: columns.shape[1]])
    return Width(base, dict(zip(names, slopes, strict=True)))
