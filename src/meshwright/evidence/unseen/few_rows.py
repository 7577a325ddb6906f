"""A few measured rows of one's own correct a predictor: what that is worth to the others, beside their median ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from meshwright.evidence.tables.score import Scored
from meshwright.prediction.own_runs.posterior import Posterior
from meshwright.prediction.own_runs.prior import packaged_priors
from meshwright.prediction.own_runs.run_table import Floats, RunTable
from meshwright.specs.cluster.own_run import OwnRun

Correction = Callable[[Sequence[Scored]], Floats]  # of rows: their corrected seconds [R]
Learn = Callable[[Sequence[Scored]], Correction]  # from rows that were measured


def by_median(known: Sequence[Scored]) -> Correction:
    """The simplest correction: everything times the median ratio of measured to predicted."""
    ratio = float(np.median(_measured(known) / _seconds(known)))
    return lambda rows: _seconds(rows) * ratio


def by_posterior(known: Sequence[Scored]) -> Correction:
    """What the rows say by Bayes' rule, with a prior that their source took no part in."""
    learned = Posterior.of(runs_of(known), packaged_priors().without(known[0][0].source))
    return lambda rows: _seconds(rows) * np.exp(learned.predict(RunTable.of(runs_of(rows)))[0])


def runs_of(rows: Sequence[Scored]) -> list[OwnRun]:
    """Predicted rows as runs."""
    return [
        OwnRun(row.row_id, one.measured_s, one.predicted_s or 0.0, one.parts, one.traits) for row, one in rows
    ]


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
