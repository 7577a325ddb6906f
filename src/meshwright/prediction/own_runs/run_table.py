"""RunTable: runs as arrays: what a step is made of by kind of work, what its plan is, and how far it was missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.prediction.own_runs.trait import TRAITS
from meshwright.prediction.step_part import WAITING
from meshwright.prediction.step_trait import KIND_OF, MEMORY, MESSAGES, seconds_by_kind
from meshwright.specs.cluster.own_run import OwnRun

Floats = NDArray[np.float64]
KINDS = ("products", "attention", MEMORY, "host", MESSAGES, "waiting")
KIND_OF_PART: Mapping[str, str] = {**KIND_OF, WAITING: "waiting"}  # what is not here is of memory
LEAST_PART = 1e-6  # of a step, so that a run without parts has one


@dataclass(frozen=True, eq=False)
class RunTable:
    """R runs, or any number of such tables at once, by leading axes.

    Attributes:
        shares: float64 [..., R, K], of a predicted step by kind of work (`KINDS`); they sum to 1.
        traits: float64 [..., R, T], in the order of `TRAITS`; 0 where a run does not say one.
        missed: float64 [..., R], logarithms of measured over predicted.
    """

    shares: Floats
    traits: Floats
    missed: Floats

    @staticmethod
    def of(runs: Sequence[OwnRun]) -> RunTable:
        """The table of these runs."""
        shares = np.full((len(runs), len(KINDS)), LEAST_PART)
        for number, run in enumerate(runs):
            for kind, seconds in seconds_by_kind(run.parts, KIND_OF_PART).items():
                shares[number, KINDS.index(kind)] += seconds
        shares /= shares.sum(axis=1, keepdims=True)
        traits = np.array([[run.traits.get(name, 0.0) for name in TRAITS] for run in runs])
        return RunTable(shares, traits, np.log([run.ratio for run in runs]))

    def trait(self, name: str) -> Floats:
        """[..., R] of one trait."""
        return np.asarray(self.traits[..., TRAITS.index(name)])

    def rows(self, numbers: Any) -> RunTable:
        """Some of these runs, by their numbers; of numbers in several axes tables of these axes."""
        return RunTable(self.shares[numbers], self.traits[numbers], self.missed[numbers])
