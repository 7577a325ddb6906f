"""Plans for GPUs from Python: formats that nobody chose, chips that nobody measured, training them on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright import api
from meshwright.api.trainings import ready
from meshwright.api.trainings.training import run_training

MODEL = mw.ModelSpec.decoder(4, 32, 2, max_sequence_length=16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile of the person who runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_formats_that_nobody_chose_are_those_of_mixed_precision() -> None:
    ranking = mw.plan(MODEL, "2xH100", global_batch=4, seq=16, microbatch_sizes=(1,))
    formats = {(c.plan.dtype, c.plan.master_dtype, c.plan.reduction_dtype) for c in ranking}
    assert formats == {("bfloat16", "float32", "float32")}
    assert any("bfloat16" in line for line in ranking.assumptions) and "assumed: bfloat16" in repr(ranking)
    assert all(candidate.memory is not None for candidate in ranking)


@pytest.mark.parametrize("choice", [{"fix": {"dtype": "float32"}}, {"dtype": "float32"}])
def test_formats_that_somebody_chose_stay(choice: dict[str, Any]) -> None:
    ranking = mw.plan(MODEL, "2xH100", global_batch=4, seq=16, microbatch_sizes=(1,), **choice)
    assert {(c.plan.dtype, c.plan.master_dtype) for c in ranking} == {("float32", "")}
    assert not ranking.assumptions


def test_processes_of_this_machine_stay_with_float32() -> None:
    ranking = mw.plan(MODEL, "2xcpu", global_batch=4, seq=16, microbatch_sizes=(1,))
    assert {c.plan.dtype for c in ranking} == {"float32"} and not ranking.assumptions
    assert all(candidate.memory is None for candidate in ranking)


def test_a_chip_without_bfloat16_computes_in_float16() -> None:
    ranking = mw.plan(MODEL, "2xV100", global_batch=4, seq=16, microbatch_sizes=(1,), extrapolate=True)
    assert {c.plan.dtype for c in ranking} == {"float16"}
    assert {c.step.basis for c in ranking} == {"never seen"}


def test_planning_for_a_chip_that_nobody_measured_has_to_be_asked_for() -> None:
    with pytest.raises(mw.PlanError, match="--extrapolate"):
        mw.plan(MODEL, "2xMI250X", global_batch=4, seq=16, microbatch_sizes=(1,))


def test_a_plan_for_gpus_trains_on_processes_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    plan = mw.Plan.of(MODEL, mw.Cluster("2xMI300X"), mw.Workload(8, 16), pp=2, dp=1)
    seen: list[api.Subject] = []

    def stop(made: api.Subject) -> None:
        seen.append(made)
        raise mw.PlanError("far enough", allowed="nothing")

    monkeypatch.setattr(ready, "_require_proof", stop)
    with pytest.raises(mw.PlanError, match="far enough"):
        run_training(plan, iterations=1)
    assert seen[0].cluster is not None and seen[0].cluster.devices[0].name == "cpu"
    assert seen[0].memory is None and seen[0].program.num_lists == 2


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"fix": "tp=2"}, "names and values"),
        ({"max_memory_bytes": "10GB"}, "a number of bytes"),
        ({"budget": 1}, "a search has no budget"),
    ],
)
def test_what_a_search_cannot_take_is_said(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(mw.PlanError, match=words):
        mw.plan(MODEL, "2xH100", global_batch=4, seq=16, **choice)


def test_one_word_is_forbidden_or_overlapped_as_a_list_of_it_is() -> None:
    found = mw.plan(MODEL, "2xH100", global_batch=4, seq=16, forbid="pp", fix={"overlap": "reduce"})
    assert {each.plan.pp for each in found} == {1}
    assert {each.plan.overlap for each in found} == {("reduce",)}


def test_a_sequence_beyond_what_the_model_was_made_for_is_said() -> None:
    found = mw.plan(MODEL, "1xH100", global_batch=1, seq=32)
    assert any("was made for 16 tokens" in line for line in found.assumptions)


def test_a_notebook_shows_plans_and_a_plan_and_nobody_reads_a_dump() -> None:
    ranking = mw.plan(MODEL, "2xH100", global_batch=4, seq=16, microbatch_sizes=(1,))
    rows, plan = ranking.rows, ranking[0].plan
    assert [row["place"] for row in rows] == list(range(1, len(ranking) + 1))
    assert rows[0]["step_s"] == ranking[0].step.value and rows[0]["dp"] == plan.dp
    shown = ranking._repr_html_()
    assert shown.count("<tr>") == 1 + min(10, len(ranking)) and ranking[0].description in shown
    assert ranking[0].description in ranking[0]._repr_html_()
    assert "global_batch = 4" in plan._repr_html_() and len(repr(plan)) < 160 and "2xH100" in repr(plan)
