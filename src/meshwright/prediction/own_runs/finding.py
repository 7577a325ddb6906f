"""What runs taught, for people: each factor before and after, how it was read, outliers, and what would teach more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.prediction.own_runs.posterior import Posterior
from meshwright.prediction.own_runs.reading import OF_FLOOR, Fitted
from meshwright.prediction.own_runs.run_table import KINDS, Floats
from meshwright.prediction.own_runs.trait import TRAITS
from meshwright.prediction.step_trait import MEMORY, MESSAGES

EVERYTHING = "everything"
LEAST_LEARNED = 0.1  # of a factor's spread that must be gone, before it is told in a line
LEAST_APART = 0.02  # of a kind's factor from everything's
OUTLIER = 0.25  # Student's weight of a run that is three scatters off
OPEN = 0.5  # of a factor's spread: what is left of it is worth another run
MOST_ADVICE = 2
# What would tell a kind of work apart, and the trait in which the new run has to differ; what differs most between clusters
# first.
HELPS: Mapping[str, tuple[str, str]] = {
    MESSAGES: ("nodes", "a run on another number of nodes would tell the network apart"),
    "waiting": ("pp", "a run with another number of pipeline stages would tell waiting apart"),
    "host": ("microbatch_size", "a run with microbatches of another size would tell the host apart"),
    "attention": ("sequence_length", "a run with longer sequences would tell attention apart"),
    "products": ("microbatch_size", "a run with microbatches of another size would tell products apart"),
    MEMORY: ("recomputed", "a run with other recomputation would tell norms and activations apart"),
}


@dataclass(frozen=True)
class Factor:
    """How long a kind of work takes over what is expected, with the level in it: standard deviations of its logarithm
    before and after."""

    kind: str
    prior: float
    value: float
    spread: float

    @property
    def learned(self) -> float:
        """The share of its spread that is gone."""
        return max(0.0, 1.0 - self.spread / self.prior)

    def __str__(self) -> str:
        return f"{self.kind} {self.value:.2f} +- {self.value * self.spread:.2f}"


def factors(posterior: Posterior) -> tuple[Factor, ...]:
    """Of all of a step, and of every kind of work, averaged over the readings."""
    found = []
    readings = np.array([chance for _, chance in posterior.prior.readings()])
    for place, kind in enumerate((EVERYTHING, *KINDS)):
        before, at, after = (np.array(each) for each in zip(*_of_kind(posterior, place)))
        mean = float(posterior.chances @ at)
        spread = math.sqrt(float(posterior.chances @ (after + (at - mean) ** 2)))
        found.append(Factor(kind, math.sqrt(float(readings @ before)), math.exp(mean), spread))
    return tuple(found)


def _of_kind(posterior: Posterior, place: int) -> Iterator[tuple[float, float, float]]:
    """Of each reading: variance before, logarithm and variance after; of a kind of work with the level in it."""
    both = [0, place] if place else [0]
    for each in posterior.readings:
        covariance = each.coordinates()[np.ix_(both, both)].sum()
        yield float((each.reading.spreads[both] ** 2).sum()), float(each.at[both].sum()), float(covariance)


def factor_lines(posterior: Posterior) -> tuple[str, ...]:
    """What was learned in short: "everything 1.05 +- 0.02", "messages 1.40 +- 0.20"; kinds of which nothing was learned, or
    what was of everything, are left out."""
    first, *others = factors(posterior)
    own = (each for each in others if abs(each.value / first.value - 1) >= LEAST_APART)
    told = [str(first), *(str(each) for each in own if each.learned >= LEAST_LEARNED)]
    return (*told, *host_lines(posterior))


def host_lines(posterior: Posterior) -> tuple[str, ...]:
    """How long the host takes to launch a step, where steps are probably no shorter than that."""
    fitted = most_probable(posterior)
    if not fitted.reading.floor:
        return ()
    first, tensor, piped = np.exp(fitted.at[OF_FLOOR:])
    return (
        f"for the host a step takes at least {fitted.reading.floor * first:.1f} times the gaps between its kernels "
        f"(x {tensor:.2f} for each doubling of tp, x {piped:.2f} in a pipeline)",
    )


def weights(posterior: Posterior) -> Floats:
    """[R] of the runs: 1 where one counts whole, near 0 for an outlier."""
    each = np.stack([np.minimum(1.0, fitted.weights) for fitted in posterior.readings], axis=-1)
    return np.asarray(each @ posterior.chances)


def readings(posterior: Posterior) -> dict[str, float]:
    """How probable each explanation is, by name."""
    return {each.reading.name: float(chance) for each, chance in zip(posterior.readings, posterior.chances)}


def most_probable(posterior: Posterior) -> Fitted:
    """The explanation that the runs make most probable."""
    return posterior.readings[int(np.argmax(posterior.chances))]


def advice(posterior: Posterior) -> tuple[str, ...]:
    """What more would help: runs that differ in what tells a kind of work apart, where its factor is still open."""
    known = posterior.readings[0].table
    open_ = {each.kind for each in factors(posterior) if each.spread > OPEN * each.prior}
    found = [
        sentence
        for kind, (trait, sentence) in HELPS.items()
        if kind in open_ and np.ptp(known.traits[:, TRAITS.index(trait)]) == 0
    ]
    return tuple(found[:MOST_ADVICE])
