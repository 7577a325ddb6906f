"""Fits how wide intervals of predicted steps are, on what measured steps are off by, and writes them into the step profile.

python -m benchmarks.fit.fit_widths src/meshwright/costs/profiles/steps.json TABLE.csv ...

A stack that no fit has seen is a new draw: how far it is off in each kind of work (products, messages, ...) has a spread, and
a step, made of these by its shares, is off accordingly. Every row is predicted without its source; a source weighs as one
row, however many it has; the width that a source is judged by is fitted on the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from meshwright.costs.step.profile import (
    LEAST_DEVIATION,
    MANY_DEVICES,
    MOST_FITTED_DEVICES,
    NORMAL_END,
    StepFit,
    StepProfile,
    Width,
)
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.score import newest_releases
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import read_rows
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_trait import UNCERTAIN, step_shares
from meshwright.specs.error import MeshwrightError

from .fit_steps import PRIORS, Floats

SHARE = 0.80  # of sources that no fit has seen, what an interval contains
# Standard deviation of the logarithm of a spread around its expectation: it may be half or twice as large, and not more.
SPREAD_OF_SPREADS = 0.5
LEAST_END = 0.3  # deviations: errors of one sign leave some room for the other
FREEDOM = 4  # of Student's distribution of the errors: a run that met a bad network says little of the others
# What one stack may be off by in a kind of work: what the mean of all chips and one chip's own constant may be, together.
# No constant knows of a step whose tensor parallelism leaves the node, nor of an eager stack's pipeline between nodes: these
# are like what the host does, of which least is known. What nobody ran: leaving a family of chips out misses by 26 % in the
# 80th percentile (borrowed_steps.py). A run: what rows are off by when their source's median is taken away.
LEAST_KNOWN = "gap_s"
CONSTANT_OF: Mapping[str, str] = {
    "products": "matmul", "attention": "attention", "memory": "stream", "host": LEAST_KNOWN, "messages": "network_exchange",
    "tp between nodes": LEAST_KNOWN, "eager pipelines": LEAST_KNOWN, "float8": "float8",
}  # fmt: skip
BORROWED_ERROR, RUN = 0.26, 0.05
EXPECTED = Width(
    {
        **{kind: hypot(PRIORS[name].spread, PRIORS[name].own_spread) for kind, name in CONSTANT_OF.items()},
        "unseen": BORROWED_ERROR / NORMAL_END,
        "run": RUN,
    }
)


@dataclass(frozen=True, eq=False)
class Errors:
    """Rows that were predicted without their source: logarithms of measured over predicted [R], shares of kinds of work
    [R, K] in the order of UNCERTAIN, sources, devices [R]."""

    logs: Floats
    shares: Floats
    sources: tuple[str, ...]
    devices: tuple[int, ...]

    def without(self, source: str) -> Errors:
        """Those of all other sources; without MANY_DEVICES, those of few."""
        if source == MANY_DEVICES:
            return self._take([count <= MOST_FITTED_DEVICES for count in self.devices])
        return self._take([each != source for each in self.sources])

    def _take(self, kept: Sequence[bool]) -> Errors:
        rows = [number for number, is_kept in enumerate(kept) if is_kept]
        return Errors(
            self.logs[rows], self.shares[rows], tuple(self.sources[i] for i in rows), tuple(self.devices[i] for i in rows)
        )  # fmt: skip

    @property
    def weights(self) -> Floats:
        """[R]; those of each source sum to 1."""
        counts = Counter(self.sources)
        return np.array([1.0 / counts[source] for source in self.sources])


def errors_of(rows: Sequence[TrainingRow], blind_to: Callable[[str], StepFit]) -> Errors:
    """What these rows are off by where each is predicted `blind_to` its source; rows without a plan are left out."""
    logs, shares, sources, devices = [], [], [], []
    for row in rows:
        try:
            job = job_of(row)
            made = predict(job.plan, job.cluster, fit=blind_to(row.source), extrapolate=True)
        except MeshwrightError as error:
            sys.stderr.write(f"{row.row_id}: {' '.join(str(error).split())}\n")
            continue
        kinds = step_shares(job.plan, job.cluster, made.parts, made.step.basis)
        logs.append(np.log(row.measured_s / made.step.value))
        shares.append([kinds[name] for name in UNCERTAIN])
        sources.append(row.source)
        devices.append(row.count("gpus"))
    return Errors(np.array(logs), np.array(shares), tuple(sources), tuple(devices))


def width_of(errors: Errors, expected: Width = EXPECTED) -> Width:
    """The spreads under which these errors are most probable, and the ends between which SHARE of the sources lie."""
    spreads = _most_probable(errors, np.array([expected.spreads[name] for name in UNCERTAIN]))
    deviations = np.maximum(np.sqrt(errors.shares**2 @ spreads**2), LEAST_DEVIATION)
    low, high = _ends(errors.logs / deviations, errors.weights)
    return Width(dict(zip(UNCERTAIN, map(float, spreads), strict=True)), low, high)


def _most_probable(errors: Errors, expected: Floats) -> Floats:
    """Spreads [K]: Student's distribution of the errors, a source weighing as one row, times that of the spreads."""
    squares, shares, weights = errors.logs**2, errors.shares**2, errors.weights

    def cost(change: Floats) -> tuple[float, Floats]:
        spreads = (expected * np.exp(change)) ** 2
        variance = shares @ spreads
        far = 1.0 + squares / (FREEDOM * variance)
        value = weights @ (np.log(variance) + (FREEDOM + 1) * np.log(far)) / 2
        slope = weights * (1.0 - (FREEDOM + 1) * (1.0 - 1.0 / far)) / variance
        penalty = change / SPREAD_OF_SPREADS**2
        return float(value + change @ penalty / 2), shares.T @ slope * spreads + penalty

    found = minimize(cost, np.zeros(len(expected)), jac=True, method="L-BFGS-B")
    return np.asarray(expected * np.exp(found.x))


def _ends(deviations: Floats, weights: Floats) -> tuple[float, float]:
    """Quantiles of sources of which one more, that nobody has seen, is half beyond either end (as in conformal prediction,
    where the next draw is as likely as each before it to be the farthest)."""
    order = np.argsort(deviations, kind="stable")
    reached = np.cumsum(weights[order])
    number = reached[-1]
    tail = max((1.0 - SHARE) / 2 * (number + 1.0) - 0.5, 0.0)
    low, high = (
        deviations[order][min(np.searchsorted(reached, at), len(order) - 1)] for at in (tail, number - tail)
    )
    return min(float(low), -LEAST_END), max(float(high), LEAST_END)


def with_widths(profile: StepProfile, errors: Errors) -> StepProfile:
    """The profile with the width of all these errors, and of all but those of each source that it or they know."""
    sources = sorted({*errors.sources, *profile.left_out})
    widths = {source: width_of(errors.without(source)) for source in sources}
    left_out = {name: replace(fit, width=widths[name]) for name, fit in profile.left_out.items()}
    others = {name: width for name, width in widths.items() if name not in left_out}
    return replace(
        profile, fit=replace(profile.fit, width=width_of(errors)), left_out=left_out, widths=others
    )


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path, help="the step profile, which gets new widths")
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files of measured training steps")
    chosen = parser.parse_args(arguments)
    profile = StepProfile.from_dict(json.loads(chosen.profile.read_text(encoding="utf-8")))
    rows = newest_releases(row for row in read_rows(chosen.tables).rows if row.is_core)
    errors = errors_of(rows, profile.blind_to)
    found = with_widths(profile, errors)
    chosen.profile.write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(
        f"{len(errors.logs)} rows, {len(set(errors.sources))} sources -> widths of {chosen.profile}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
