"""Slots of a search: what another planner is asked for is done, or refused by name; code that breaks is told as its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.api.plans.solving import pareto, solve
from meshwright.specs.error import PlanError, SpecError

JOB: dict[str, Any] = {"global_batch": 16, "seq": 1024}
TWO = """
from meshwright import Plan

def two(model, cluster, workload, fix):
    return (Plan.of(model, cluster, workload, sharding=s, tp=t, recompute=r, **fix)
            for s, t, r in (("zero1", 1, "none"), ("zero3", 2, "full")))
"""
BROKEN = """
def nothing(*given): return None
def few(one): return ()
def divides(*given): return 1 / 0
def late(*given): yield 1 / 0
def words(*given): return ["tp"]
class Thing: pass
"""


@pytest.fixture
def two(tmp_path: Path) -> str:
    """A planner that gives two plans."""
    (tmp_path / "two.py").write_text(TWO)
    return f"{tmp_path / 'two.py'}:two"


def test_another_planner_is_asked_for_less(two: str) -> None:
    plans = mw.plan("llama-3.2-1b", "4xH100", **JOB, planner=two)
    fast, small = sorted((each.step.value, each.peak_bytes) for each in plans)
    assert small[1] < fast[1], "the two differ in what is least"
    assert plans[0].step.value == fast[0]
    assert mw.plan("llama-3.2-1b", "4xH100", **JOB, planner=two, objective="memory")[0].peak_bytes == small[1]
    for word in ("tp", "zero3"):
        assert [
            each.plan.tp for each in mw.plan("llama-3.2-1b", "4xH100", **JOB, planner=two, forbid=word)
        ] == [1]
    with pytest.raises(PlanError, match="all of whose 2 plans"):
        mw.plan("llama-3.2-1b", "4xH100", **JOB, planner=two, forbid=("tp", "zero1"))


def test_what_only_our_search_does_is_refused_with_another_planner(two: str) -> None:
    job = {**JOB, "planner": two}
    for asked in (
        lambda: pareto("gpt2", "4xH100", **job),
        lambda: solve("gpt2", "4xH100", "microbatch", **job),
        lambda: mw.plan(like="plan.toml", planner=two),
        *(
            lambda m=more: mw.plan("gpt2", "4xH100", **job, **m)
            for more in ({"iterations": 2}, {"layer_wise": True})
        ),
    ):
        with pytest.raises(PlanError, match="with --planner .*two.py:two; allowed: .*--forbid.*leave out"):
            asked()
    assert len(pareto("gpt2", "4xH100", **JOB, planner="search", fix={"tp": 1, "pp": 1}))


ANYWHERE = {"nothing": "it gives None", "divides": "line 4: ZeroDivisionError", "Thing": "no arguments"}
OF_PLANNERS = {
    "few": "positional",
    "late": "line 5: ZeroDivisionError",
    "words": "gives 'tp', not of type Plan",
}


@pytest.mark.parametrize(
    ("slot", "name", "said"),
    [
        *(("planner", *one) for one in OF_PLANNERS.items()),
        *((s, *one) for s in ("planner", "placement", "variant", "passes") for one in ANYWHERE.items()),
    ],
)
def test_code_that_breaks_is_told_as_the_users(slot: str, name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BROKEN)
    code = f"{tmp_path / 'bad.py'}:{name}"
    asked = {"planner": code} if slot == "planner" else {"fix": {slot: code, "tp": 1, "pp": 1}}
    with pytest.raises(SpecError, match=f"{slot} bad.py:{name} failed: .*{said}.*correct the file"):
        mw.plan("gpt2", "4xH100", **JOB, **asked)


@pytest.mark.slow
def test_plans_with_a_slot_that_hardly_fit_stand_behind_those_that_do() -> None:
    model = mw.ModelSpec.decoder(28, 2560, 20, vocabulary_size=180_000, max_sequence_length=4096)
    job: dict[str, Any] = {"global_batch": 64, "seq": 4096, "fix": {"sharding": "low_bandwidth_partitioning"}}
    found, capacity = mw.plan(model, "4x4xH100", **job), mw.Cluster("4x4xH100").memory_bytes
    chances = [each.fit_probability(capacity) for each in found]
    assert chances[0] >= 0.5 > min(chances) and "--risk" in found.passed_over[0].why
    risky = mw.plan(model, "4x4xH100", **job, risk=1.0)
    assert risky[0].step.value == min(each.step.value for each in risky) < found[0].step.value
    assert found.search_s > 0 and found.simulation_s > 0


def test_an_order_of_ones_own_takes_whole_tables_unless_a_split_is_fixed() -> None:
    model = mw.ModelSpec.decoder(8, 512, 8, vocabulary_size=200_064, max_sequence_length=1024)
    fix = {"schedule": "skip_pipe", "pp": 4}
    plans = mw.plan(model, "4x1xA100-80", global_batch=16, seq=1024, fix=fix)
    assert {each.plan.vocabulary for each in plans} == {"ends"}


def test_a_planner_of_gpus_plans_processes() -> None:
    model = mw.ModelSpec.decoder(4, 64, 4, max_sequence_length=64)
    plans = mw.plan(model, "2xcpu", global_batch=8, seq=64, planner="pipette")
    assert {each.plan.dtype for each in plans} == {"float32"} and {each.plan.dp for each in plans} == {1, 2}
