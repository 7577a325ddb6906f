"""Safe plans: the first fits at the upper end of its memory's interval, and the faster one that may not is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from meshwright.planner.search.plans import Plans, passed_over
from meshwright.planner.search.search import search
from meshwright.planner.space.space import space_of
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, Workload, load_model

FIX = {
    "dtype": "bfloat16",
    "master_dtype": "float32",
    "reduction_dtype": "float32",
    "pp": 1,
    "tp": 1,
    "cp": 1,
}
JOB = (load_model("llama-3.1-8b"), Cluster("8xH100"), Workload(32, 4096))


@cache
def found(risk: float | None) -> Plans:
    return search(*JOB, fix=FIX, risk=risk)


def test_the_first_plan_fits_at_its_upper_end_and_is_the_fastest_that_does() -> None:
    expected, safe = found(None), found(0.0)
    assert expected[0].bound_bytes > JOB[1].memory_bytes and expected[0].fit_probability() < 1
    assert safe[0].bound_bytes <= JOB[1].memory_bytes and safe[0].fit_probability() == 1
    space = space_of(*JOB, fix=FIX)
    every = [predict(space.plan(number), JOB[1]) for number in range(0, len(space), 7)]
    certain = [each for each in every if each.rejected() is None and each.fit_probability() == 1]
    assert len(certain) >= 5 and safe[0].step.value <= min(each.step.value for each in certain) * 1.001


def test_the_faster_plan_is_named_with_the_risk_that_accepts_it() -> None:
    (over,) = found(0.0).passed_over
    assert over.plan.step.value < found(0.0)[0].step.value
    risk = float(over.why.partition("--risk ")[2].partition(" ")[0])
    accepted = found(risk)
    assert accepted[0].plan == over.plan.plan and not accepted.passed_over
    assert 1 - over.plan.fit_probability() <= risk < 1 - over.plan.fit_probability() + 0.02


def likely(step_s: float, chance: float) -> Any:
    return SimpleNamespace(step=SimpleNamespace(value=step_s), fit_probability=lambda capacity: chance)


def test_what_hardly_ever_fits_is_not_offered() -> None:
    """--risk 1 accepts anything, which is no advice; the fastest that may fit is."""
    safe, never, seldom, certain = likely(3, 1), likely(1, 0.0), likely(1, 0.004), likely(2, 0.9996)
    assert passed_over([safe, never, seldom], 1, 0.0) == ()
    (over,) = passed_over([safe, never, certain, seldom], 1, 0.0)
    assert over.plan is certain
    assert over.why == "it fits with a chance of 99.9 % only; --risk 0.01 accepts it"


def test_risky_plans_stand_behind_all_others() -> None:
    chances = [each.fit_probability() for each in found(0.0)]
    first_risky = next(n for n, chance in enumerate(chances) if chance < 1)
    assert all(chance < 1 for chance in chances[first_risky:]) and 0 < first_risky < len(chances)
    steps = [each.step.value for each in found(0.0)[first_risky:]]
    assert steps == sorted(steps)


def test_less_memory_is_the_same_question() -> None:
    """What a limit leaves is what has to hold the upper end."""
    plans = search(*JOB, fix=FIX, risk=0.0, max_memory_bytes=70_000_000_000)
    assert plans[0].bound_bytes <= 70e9


def test_the_first_plan_that_fits_is_looked_for_as_far_as_it_is_slow() -> None:
    """On nodes with one link each the fastest plans hardly fit, and all that surely do are more than a tenth behind them:
    what the search for the fastest leaves out, one of them is the best."""
    short = Cluster("4x8xA100-80 nic=25GB/s")
    levels = (short.levels[0], replace(short.levels[1], attached="group"))
    job = (
        load_model("llama-3.1-70b"),
        replace(short, name="one link a node", levels=levels),
        Workload(512, 8192),
    )
    fix = {each: FIX[each] for each in ("dtype", "master_dtype", "reduction_dtype")}
    fix |= {"vocabulary": "ends", "token_parts": 1, "schedule": ("1f1b", "v_1f1b")}
    first, narrow = (
        search(*job, fix=fix, risk=0.0)[0],
        search(*job, fix={**fix, "tp": 8, "pp": 4}, risk=0.0)[0],
    )
    assert first.fit_probability() == narrow.fit_probability() == 1
    assert first.step.value <= 1.001 * narrow.step.value
