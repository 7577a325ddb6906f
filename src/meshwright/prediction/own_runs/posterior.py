"""Posterior: what a few runs of one's own say of a stack, and of the step of a plan that did not run yet.

Several readings of the runs stand beside each other, each with the weight of its evidence; what is predicted is their
mixture (Hoeting et al. 1999, Statistical Science 14). A stack whose runs scatter more than stacks do has wider intervals:
the scale of all variances is learned with them, as if some runs had been seen before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.prediction.own_runs.prior import RunPrior
from meshwright.prediction.own_runs.reading import Fitted
from meshwright.prediction.own_runs.run_table import Floats, RunTable
from meshwright.specs.cluster.own_run import OwnRun

SEEN_BEFORE = 4.0  # runs, in whose place the prior speaks of how far runs scatter


@dataclass(frozen=True, eq=False)
class Posterior:
    """What runs say.

    Attributes:
        prior: what was expected before.
        readings: the explanations, fitted. chances: float64 [..., readings], how probable each is now.
    """

    prior: RunPrior
    readings: tuple[Fitted, ...]
    chances: Floats

    @staticmethod
    def of(runs: Sequence[OwnRun], prior: RunPrior) -> Posterior:
        """What these runs say."""
        return Posterior.of_table(RunTable.of(runs), prior)

    @staticmethod
    def of_table(table: RunTable, prior: RunPrior) -> Posterior:
        """What the runs of a table say, or of each of several tables."""
        readings, chances = zip(*prior.readings())
        fitted = tuple(reading.fit(table) for reading in readings)
        weight = np.stack([each.evidence for each in fitted], axis=-1) + np.log(chances)
        weight = np.exp(weight - weight.max(axis=-1, keepdims=True))
        return Posterior(prior, fitted, weight / weight.sum(axis=-1, keepdims=True))

    @cached_property
    def scale(self) -> Floats:
        """[...], of all variances: above 1 where the runs scatter more than those of other stacks."""
        wide = (np.stack([each.wide for each in self.readings], axis=-1) * self.chances).sum(axis=-1)
        num_runs = self.readings[0].table.missed.shape[-1]
        return np.asarray((SEEN_BEFORE + wide) / (SEEN_BEFORE + num_runs))

    def predict(self, others: RunTable) -> tuple[Floats, Floats]:
        """Of other plans: logarithms [..., R] of steps over the prediction, and standard deviations of a run of them."""
        found = [each.predict(others) for each in self.readings]
        means, variances = (np.stack(each, axis=-1) for each in zip(*found))
        chances = self.chances[..., None, :]
        mean = (means * chances).sum(axis=-1)
        spread = (chances * (variances + (means - mean[..., None]) ** 2)).sum(axis=-1)
        return mean, np.sqrt(self.scale[..., None] * (spread + self.prior.scatter**2))
