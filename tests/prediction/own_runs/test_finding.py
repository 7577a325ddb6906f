"""What runs taught is told: factors before and after, an outlier by name, and only runs that would differ as advice."""

from __future__ import annotations

from tests.prediction.own_runs.test_posterior import runs

from meshwright.prediction.own_runs import finding
from meshwright.prediction.own_runs.posterior import Posterior
from meshwright.prediction.own_runs.prior import packaged_priors
from meshwright.specs.cluster.own_run import OwnRun

PRIOR = packaged_priors().fit


def test_a_kind_that_is_slower_is_told_with_what_is_left_of_its_spread() -> None:
    posterior = Posterior.of(runs(40, {"exchanges inside, host": 1.4}), PRIOR)
    found = {each.kind: each for each in finding.factors(posterior)}
    assert abs(found["messages"].value - 1.4) < 0.1 and found["messages"].learned > 0.3
    assert abs(found["products"].value - 1.0) < 0.05
    lines = finding.factor_lines(posterior)
    assert lines[0].startswith("everything ") and any(line.startswith("messages 1.") for line in lines)


def test_of_one_run_little_is_learned_of_what_it_hardly_has() -> None:
    run = OwnRun("one", 1.2, 1.0, {"matmul": 0.9, "stream": 0.1})
    found = {each.kind: each for each in finding.factors(Posterior.of([run], PRIOR))}
    assert found["waiting"].learned == 0.0 and found["products"].value > 1.05


def test_the_outlier_is_the_run_that_was() -> None:
    good = runs(9, {})
    bad = OwnRun("bad", 3.0, 1.0, good[0].parts, good[0].traits)
    weights = finding.weights(Posterior.of([*good, bad], PRIOR))
    assert (weights < finding.OUTLIER).tolist() == [False] * 9 + [True]
    assert sum(finding.readings(Posterior.of(good, PRIOR)).values()) > 0.999


def test_advice_is_of_runs_that_differ_from_those_that_are_known() -> None:
    alike = [OwnRun(f"{n}", 1.0, 1.0, {"matmul": 1.0}, {"nodes": 1.0, "pp": 0.0}) for n in range(2)]
    assert any("pipeline stages" in line for line in finding.advice(Posterior.of(alike, PRIOR)))
    piped = [OwnRun(f"{n}", 1.0, 1.0, {"matmul": 1.0}, {"nodes": 1.0, "pp": float(n)}) for n in range(2)]
    assert not any("pipeline stages" in line for line in finding.advice(Posterior.of(piped, PRIOR)))


def test_a_floor_of_the_host_is_told_where_runs_show_one() -> None:
    slow = []
    for number in range(10):
        gap = 0.03 * (number + 1)
        parts = {"matmul": 1.0 - gap, "gap": gap}
        slow.append(OwnRun(f"run {number}", max(1.0, 5 * gap), 1.0, parts))
    (line,) = finding.host_lines(Posterior.of(slow, PRIOR))
    assert line.startswith("for the host")
    assert finding.host_lines(Posterior.of(runs(5, {}), PRIOR)) == ()
