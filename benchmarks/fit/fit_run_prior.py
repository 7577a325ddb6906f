"""Fits what is expected of a stack before its own runs are seen, on sources that were left out of the constants.

python -m benchmarks.fit.fit_run_prior TABLE.csv ... -o src/meshwright/prediction/own_runs/priors.json

Of each source 1, 3 and 10 rows are drawn, SETS times, and the others predicted: the prior is the one under which these were
most likely (empirical Bayes; Good 1965), sources and numbers of rows weighing alike. Then intervals are made as wide as 80 %
of them need. Rows of sources that the packaged constants do not know take no part.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from meshwright.evidence.tables.score import newest_releases
from meshwright.evidence.tables.table import read_training_table
from meshwright.evidence.unseen.few_rows import runs_of
from meshwright.evidence.unseen.left_out import is_known, left_out
from meshwright.prediction.own_runs.posterior import Posterior
from meshwright.prediction.own_runs.prior import FREEDOM, RunPrior, RunPriors
from meshwright.prediction.own_runs.reading import student
from meshwright.prediction.own_runs.run_table import Floats, RunTable

SOURCE = "published training runs that NOTICE names, by constants without their source; benchmarks/fit/fit_run_prior.py"
DRAWN = (1, 3, 10)  # rows of one's own
SETS, MOST_OTHERS = 16, 24  # draws of a source and number; rows that are predicted in each
COVERED = 0.80  # of an interval
# A stack's level is what one learns first, so it is open. The fifteen public sources, each left out, are off by 7.4 % in
# their medians (root of the mean square).
LEVEL = 0.08
# That a stack is but faster or slower as a whole: of 0.33, 0.6, 0.8, 0.9, 0.95 the one under which the median errors of the
# ten sources, over those of the median ratio of the rows, are smallest (geometric mean, 3 and 10 rows; 0.6 and 0.9 are 1 to
# 2 % behind).
PLAIN = 0.8
# Where the search begins, and what a source's worth of evidence is set against: half of how far the constants of one chip
# may be from theirs in the fit of the constants (PRIORS of fit_steps), a twentieth for what goes with the layout.
START = {
    "products": 0.085, "attention": 0.11, "memory": 0.17, "host": 0.5, "messages": 0.17, "waiting": 0.17, "nodes": 0.01,
    "layout": 0.05, "scatter": 0.025,
}  # fmt: skip
SPREAD_OF_START = 0.7  # of logarithms
FARTHEST = 2.0  # of logarithms, from there


class Draw(NamedTuple):
    """Rows that are known and others that are not, many times of one source: `known` [S, R], `others` [S, Q]."""

    known: RunTable
    others: RunTable


def draws_of(sources: Mapping[str, RunTable]) -> dict[str, list[Draw]]:
    """Of each source a draw for every number of rows of which it has twice as many."""
    random = np.random.default_rng(0)
    found: dict[str, list[Draw]] = {}
    for source, table in sources.items():
        num_rows = len(table.missed)
        for number in DRAWN:
            if num_rows >= 2 * number:
                orders = np.array([random.permutation(num_rows) for _ in range(SETS)])
                others = orders[:, number : number + MOST_OTHERS]
                found.setdefault(source, []).append(Draw(table.rows(orders[:, :number]), table.rows(others)))
    return found


def prior_of(logs: Floats) -> RunPrior:
    """The prior at these logarithms, in the order of START."""
    values = dict(zip(START, np.exp(logs).tolist(), strict=True))
    rest = {name: values.pop(name) for name in ("layout", "scatter")}
    return RunPrior({"level": LEVEL, **values}, **rest, plain=PLAIN, quantile=1.0)


def surprise(prior: RunPrior, draws: Sequence[Draw]) -> float:
    """Minus the mean logarithm of how likely the other rows were."""
    found = []
    for draw in draws:
        mean, spread = Posterior.of_table(draw.known, prior).predict(draw.others)
        likely = student((draw.others.missed - mean) / spread, FREEDOM) - np.log(spread)
        found.append(-float(likely.mean()))
    return float(np.mean(found))


def quantile_of(prior: RunPrior, draws: Mapping[str, Sequence[Draw]]) -> float:
    """How many standard deviations hold 80 % of the other rows, sources and numbers of rows weighing alike."""
    errors, weights = [], []
    for own in draws.values():
        for draw in own:
            mean, spread = Posterior.of_table(draw.known, prior).predict(draw.others)
            off = np.abs((draw.others.missed - mean) / spread).ravel()
            errors.append(off)
            weights.append(np.full(len(off), 1.0 / len(off) / len(own)))
    off, weight = np.concatenate(errors), np.concatenate(weights)
    order = np.argsort(off)
    return float(off[order][np.searchsorted(np.cumsum(weight[order]), COVERED * weight.sum())])


def fitted(draws: Mapping[str, Sequence[Draw]], begin: Floats | None = None) -> tuple[RunPrior, Floats]:
    """The prior of these sources, and its logarithms."""
    start = np.log(list(START.values()))

    def cost(logs: Floats) -> float:
        told = float((((logs - start) / SPREAD_OF_START) ** 2).sum()) / 2 / len(draws)
        return float(np.mean([surprise(prior_of(logs), own) for own in draws.values()])) + told / MOST_OTHERS

    first = start if begin is None else begin
    options = {"maxiter": 12 if begin is None else 5}
    bounds = [(at - FARTHEST, at + FARTHEST) for at in start]
    best = minimize(cost, first, method="L-BFGS-B", bounds=bounds, options=options).x
    prior = prior_of(best)
    return prior.with_quantile(quantile_of(prior, draws)), best


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files of measured training steps")
    parser.add_argument("-o", "--output", required=True, type=Path)
    chosen = parser.parse_args(arguments)
    rows = [row for table in chosen.tables for row in read_training_table(table) if row.is_core]
    scored = left_out(newest_releases(row for row in rows if is_known(row.source)))
    names = sorted({row.source for row, _ in scored})
    sources = {
        name: RunTable.of(
            runs_of([pair for pair in scored if pair[0].source == name and pair[1].predicted_s])
        )
        for name in names
    }
    draws = draws_of(sources)
    fit, logs = fitted(draws)
    others = {name: {key: own for key, own in draws.items() if key != name} for name in draws}
    priors = RunPriors(fit, {name: fitted(own, logs)[0] for name, own in others.items()}, SOURCE)
    chosen.output.write_text(json.dumps(priors.to_dict(), indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"{len(scored)} rows, {len(draws)} sources -> {chosen.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
