"""What runs say by Bayes' rule: factors are found, intervals narrow, an outlier weighs little, few runs say little."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.prediction.own_runs.posterior import Posterior
from meshwright.prediction.own_runs.prior import EVERY_KIND, RunPrior, packaged_priors
from meshwright.prediction.own_runs.reading import COORDINATES, LEVEL, LEVEL_FREEDOM, Reading, student
from meshwright.prediction.own_runs.run_table import KINDS, RunTable
from meshwright.specs.cluster.own_run import OwnRun
from meshwright.specs.error import SpecError

PARTS = ("matmul", "attention", "stream", "gap", "exchanges inside, host", "waiting")


def runs(number: int, factors: dict[str, float], seed: int = 0, noise: float = 0.01) -> list[OwnRun]:
    """Runs of many layouts, whose parts take these times as long as predicted, and a run `noise` more or less."""
    random = np.random.default_rng(seed)
    found = []
    for place in range(number):
        parts = dict(zip(PARTS, random.dirichlet([6, 2, 1, 1, 3, 1]), strict=True))
        measured = sum(factors.get(name, 1.0) * seconds for name, seconds in parts.items())
        traits = {"tp": float(random.integers(4)), "nodes": float(random.integers(5))}
        found.append(OwnRun(f"run {place}", measured * np.exp(noise * random.normal()), 1.0, parts, traits))
    return found


def predicted(known: list[OwnRun], others: list[OwnRun]) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the others, and how many standard deviations they are."""
    mean, spread = Posterior.of(known, packaged_priors().fit).predict(RunTable.of(others))
    missed = mean - RunTable.of(others).missed
    return np.abs(missed), np.abs(missed) / spread


def test_one_factor_for_everything_is_found_of_three_runs_that_agree() -> None:
    for factor in (0.8, 1.3, 2.0):
        everything = dict.fromkeys(PARTS, factor)
        errors, _ = predicted(runs(3, everything), runs(20, everything, seed=1))
        assert np.median(errors) < 0.03


def test_what_only_some_runs_have_is_learned_of_these() -> None:
    """Messages take 1.6 times as long. Twenty runs tell that from one factor for all: products alone stay as they are."""
    slow = {"exchanges inside, host": 1.6}
    alone = OwnRun("alone", 1.0, 1.0, {"matmul": 0.95, "stream": 0.05})
    known = runs(20, slow)
    (error,), _ = predicted(known, [alone])
    assert error < 0.05 < np.median(np.log([run.ratio for run in known]))
    errors, _ = predicted(known, runs(40, slow, seed=2))
    ratio = np.median([run.ratio for run in known])
    assert np.median(errors) < 0.6 * np.median(
        [abs(np.log(run.ratio / ratio)) for run in runs(40, slow, seed=2)]
    )


def test_intervals_narrow_with_runs_and_hold_what_comes_next() -> None:
    slow, widths = {"exchanges inside, host": 1.5, "matmul": 1.1}, []
    others = RunTable.of(runs(200, slow, seed=3))
    prior = packaged_priors().fit
    for number in (1, 5, 40):
        mean, spread = Posterior.of(runs(number, slow), prior).predict(others)
        widths.append(float(np.median(spread)))
        assert np.mean(np.abs(mean - others.missed) < prior.quantile * spread) > 0.7
    assert widths == sorted(widths, reverse=True)


def test_a_run_that_met_a_bad_network_says_little() -> None:
    good = runs(9, {})
    bad = OwnRun("bad", 3.0 * good[0].predicted_s, 1.0, good[0].parts, good[0].traits)
    posterior = Posterior.of([*good, bad], packaged_priors().fit)
    weights = posterior.readings[0].weights
    assert weights[-1] < 0.05 * weights[:-1].min()
    errors, _ = predicted([*good, bad], runs(20, {}, seed=4))
    assert np.median(errors) < 0.02


def test_the_host_is_found_behind_small_steps() -> None:
    """Steps are as predicted, or five times the gaps between their kernels where that is more."""
    random, known = np.random.default_rng(5), []
    for place in range(20):
        gap = random.uniform(0.02, 0.35)
        parts = {"matmul": 1.0 - gap, "gap": gap}
        known.append(OwnRun(f"run {place}", max(1.0, 5 * gap), 1.0, parts))
    errors, _ = predicted(known[:10], known[10:])
    assert np.max(errors) < 0.12
    found = Posterior.of(known[:10], packaged_priors().fit)
    assert found.chances.argmax() == 2


def test_slopes_are_derivatives() -> None:
    prior = packaged_priors().fit
    table = RunTable.of(runs(4, {}))
    for reading, _ in prior.readings():
        at = 0.2 * np.arange(len(COORDINATES)) / len(COORDINATES)
        _, slopes = reading.expected(at, table)
        for number in range(len(COORDINATES)):
            step = 1e-6 * np.eye(len(COORDINATES))[number]
            change = (reading.expected(at + step, table)[0] - reading.expected(at - step, table)[0]) / 2e-6
            assert slopes[:, number] == pytest.approx(change, abs=1e-7)


def test_evidence_is_the_integral_over_the_level() -> None:
    """One level, scatter that is nearly normal: by quadrature."""
    spreads = np.array([0.1 if name == LEVEL else 0.0 for name in COORDINATES])
    for factor in (1.02, 1.5):
        table = RunTable.of(runs(5, dict.fromkeys(PARTS, factor), noise=0.03))
        found = Reading("level", spreads, 0.0, 0.0, 1.0, 0.05, 1e7).fit(table)
        levels = np.linspace(-1.0, 1.0, 20001)
        off = (table.missed - levels[:, None]) / 0.05
        densities = (
            student(off, 1e7).sum(axis=1)
            - 5 * np.log(0.05)
            + student(levels / 0.1, LEVEL_FREEDOM)
            - np.log(0.1)
        )
        assert found.evidence == pytest.approx(np.log(np.exp(densities).sum() * 1e-4), abs=0.05)


def test_tables_of_many_draws_are_read_as_one_by_one() -> None:
    table, prior = RunTable.of(runs(12, {"matmul": 1.2})), packaged_priors().fit
    numbers = np.array([[0, 1, 2], [5, 7, 9]])
    both, spreads = Posterior.of_table(table.rows(numbers), prior).predict(table.rows(numbers + 1))
    for place in range(2):
        one, spread = Posterior.of_table(table.rows(numbers[place]), prior).predict(
            table.rows(numbers[place] + 1)
        )
        assert both[place] == pytest.approx(one, abs=1e-9) and spreads[place] == pytest.approx(
            spread, abs=1e-9
        )


def test_every_prior_is_whole_and_no_source_judges_itself() -> None:
    priors = packaged_priors()
    assert priors.without("internevo") is not priors.fit and priors.without("nobody") is priors.fit
    for prior in (priors.fit, *priors.left_out.values()):
        assert isinstance(prior, RunPrior) and set(prior.spreads) == {LEVEL, *KINDS, "nodes"}
        assert sum(chance for _, chance in prior.readings()) == pytest.approx(1.0)
        assert [reading.name for reading, _ in prior.readings()][1] == EVERY_KIND


def test_a_run_of_no_time_is_refused() -> None:
    with pytest.raises(SpecError, match="measured step 0"):
        OwnRun("none", 0.0, 1.0, {"matmul": 1.0})
