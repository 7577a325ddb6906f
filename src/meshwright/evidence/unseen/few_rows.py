"""A few measured rows of one's own correct a predictor: each kind of work by what these rows say of it, and no further.

A step is the sum of its parts (`step_parts`), and a stack does all of it, and each kind of work, a factor slower or faster
than expected.
The factors are those that are most probable given the rows: their logarithms are around 0 as far as one stack's may be, the
rows' errors around what remains. One row moves all kinds a little; kinds of which it has much, most.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.tables.score import Scored
from meshwright.prediction.step_trait import BESIDE, KIND_OF, MEMORY

Floats = NDArray[np.float64]
Correction = Callable[[Sequence[Scored]], Floats]  # of rows: their corrected seconds [R]
Learn = Callable[[Sequence[Scored]], Correction]  # from rows that were measured

# How far, as a standard deviation in logarithms, a stack may be from what is expected of it: as far as the constants of one
# chip may be from theirs in the fit (PRIORS of benchmarks/fit/fit_steps.py: of the mean and of one's own, together). All of
# it may be as far off as products, of which most of a step is.
SPREADS: Mapping[str, float] = {
    "products": 0.17,
    "attention": 0.22,
    "memory": 0.34,
    "host": 1.0,
    "messages": 0.34,
}
SPREAD_OF_ALL = SPREADS["products"]
# Of one row: what it is off by when its source's median is taken away (0.033 in the median, over the ten sources that the
# constants were fitted on, each left out), as a standard deviation.
NOISE = 0.05
FREEDOM = 4  # of Student's distribution of the errors: a run that met a bad network says little of its stack
ROUNDS = 20  # of Newton's method; it converges in a handful
LEAST_PART = 1e-6  # of a step, so that a row without parts has one


def by_median(known: Sequence[Scored]) -> Correction:
    """The simplest correction: everything times the median ratio of measured to predicted."""
    ratio = float(np.median(_measured(known) / _seconds(known)))
    return lambda rows: _seconds(rows) * ratio


def by_kind_of_work(known: Sequence[Scored]) -> Correction:
    """The most probable factor of each kind of work, applied to what the other rows have of it."""
    all_of_it, *kinds = np.exp(_most_probable(_shares(known), _seconds(known), _measured(known)))
    factors = all_of_it * np.array(kinds)
    return lambda rows: _seconds(rows) * (_shares(rows) @ factors)


def _most_probable(shares: Floats, predicted_s: Floats, measured_s: Floats) -> Floats:
    """Logarithms [1 + K] of the factors, of all of it first: Gauss-Newton on the logarithms of predicted over
    measured, far rows weighing less."""
    spread = np.array([SPREAD_OF_ALL, *SPREADS.values()])
    found = np.zeros(len(spread))
    for _ in range(ROUNDS):
        parts = shares * np.exp(found[1:])
        sums = parts.sum(axis=1)
        errors = np.log(sums * predicted_s / measured_s) + found[0]
        slopes = np.column_stack([np.ones(len(sums)), parts / sums[:, None]])
        weights = (FREEDOM + 1) / (FREEDOM + (errors / NOISE) ** 2) / NOISE**2
        curvature = (slopes * weights[:, None]).T @ slopes + np.diag(spread**-2)
        step = np.linalg.solve(curvature, (slopes * weights[:, None]).T @ errors + found / spread**2)
        found = found - np.clip(step, -1.0, 1.0)
    return found


def _shares(rows: Sequence[Scored]) -> Floats:
    """[R, K] of each row's step by kind of work; they sum to 1."""
    kinds = list(SPREADS)
    found = np.zeros((len(rows), len(kinds)))
    for number, (_, prediction) in enumerate(rows):
        for name, seconds in prediction.parts.items():
            if name not in BESIDE:
                found[number, kinds.index(KIND_OF.get(name, MEMORY))] += seconds
    found += LEAST_PART
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _seconds(rows: Sequence[Scored]) -> Floats:
    return np.array([prediction.predicted_s for _, prediction in rows], dtype=float)


def _measured(rows: Sequence[Scored]) -> Floats:
    return np.array([prediction.measured_s for _, prediction in rows])


def median_error(rows: Sequence[Scored], num_known: int, num_draws: int, learn: Learn) -> float | None:
    """The median over draws of the median error of the rows that were not drawn; None where too few are left.

    A draw is of rows that were predicted; skipped rows are never drawn and count as 100 %. The draws are the same for every
    way to learn.
    """
    predicted = [pair for pair in rows if pair[1].predicted_s]
    if len(rows) < 2 * num_known or len(predicted) <= num_known:
        return None
    random = np.random.default_rng(0)
    skipped = [1.0] * (len(rows) - len(predicted))
    found = []
    for _ in range(num_draws):
        drawn = set(random.choice(len(predicted), num_known, replace=False).tolist())
        rest = [pair for i, pair in enumerate(predicted) if i not in drawn]
        correct = learn([predicted[i] for i in sorted(drawn)])
        errors = np.abs(correct(rest) / _measured(rest) - 1.0)
        found.append(float(np.median([*errors, *skipped])))
    return statistics.median(found)
