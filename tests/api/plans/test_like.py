"""`mw.plan(like=...)`, `Plan.export` and `Plan.load(format=...)` from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.todays_file import DEEPSPEED, MEGATRON, TORCHTITAN

import meshwright as mw

FEW = {"pp": 1, "cp": 1, "microbatch_size": 1, "sharding_degree": 0, "recompute": "none"}


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_best_plan_goes_straight_on(tmp_path: Path) -> None:
    file = written(tmp_path, "train.sh", MEGATRON)
    found = mw.plan(like=file, format="megatron", cluster="H100", fix=FEW, forbid=("zero2",), num_simulated=4)
    assert found.best is found[0] and found.best.step.value < found.today.step.value
    assert found.today.plan.tp == 8 and "today" in repr(found) and "--recompute-activations" in repr(found)
    assert found.exported is not None and found.exported.text == found.best.plan.export("megatron")
    # the cluster may be given as it is, too
    again = mw.plan(
        like=file,
        format="megatron",
        cluster=mw.Cluster("2x8xH100"),
        fix=FEW,
        forbid=("zero2",),
        num_simulated=4,
    )
    assert again.best.step.value == found.best.step.value


def test_the_first_plan_fits_for_sure_unless_a_risk_is_taken(tmp_path: Path) -> None:
    file = written(tmp_path, "train.sh", MEGATRON)
    asked = {"like": file, "format": "megatron", "cluster": "H100", "num_simulated": 4}
    fix, forbid = {name: FEW[name] for name in FEW if name != "recompute"}, ("zero2", "selective_op")
    capacity = mw.Cluster("H100").memory_bytes
    sure = mw.plan(**asked, fix=fix, forbid=forbid)
    assert sure.best is sure[0] and sure.best.fit_probability(capacity) == 1.0
    (over,) = sure.found.passed_over
    chance = over.plan.fit_probability(capacity)
    assert over.plan.step.value < sure.best.step.value and 0 < chance < 1
    risky = mw.plan(**asked, fix=fix, forbid=forbid, risk=1 - chance + 1e-6)
    assert risky.best.description == over.plan.description and not risky.found.passed_over


def test_a_plan_may_be_todays(tmp_path: Path) -> None:
    plan = mw.Plan.load(written(tmp_path, "train.toml", TORCHTITAN), format="torchtitan", cluster="8xH100")
    found = mw.plan(like=plan, fix=FEW, forbid=("zero2",), num_simulated=4)
    assert found.today.plan is plan and found.exported is None
    assert "recompute" in {change.name for change in found.changes}
    said = mw.plan(like=plan, format="torchtitan", fix=FEW, forbid=("zero2",), num_simulated=4)
    assert said.exported is not None and said.best.plan.sharding == "zero3"


def test_a_faster_plan_that_the_program_cannot_say_is_told_with_the_reason(tmp_path: Path) -> None:
    file = written(tmp_path, "ds.json", DEEPSPEED)
    found = mw.plan(
        "llama-3.1-8b", "8xH100", seq=16384, like=file, format="deepspeed", fix={**FEW, "tp": 4}, num_simulated=4
    )  # fmt: skip
    assert found.faster is not None and found.faster.step.value < found.best.step.value
    assert "sequence_parallel = true" in {each.choice for each in found.faster_refusals}
    assert found.best is not found.today  # which is faster, but has no tp = 4
    assert found.best.plan.tp == 4 and not found.best.plan.sequence_parallel
    assert found.exported is not None and '"autotp_size": 4' in found.exported.text


def test_today_may_be_the_fastest(tmp_path: Path) -> None:
    plan = mw.Plan.load(written(tmp_path, "train.toml", TORCHTITAN), format="torchtitan", cluster="8xH100")
    best = mw.plan(like=plan, format="torchtitan", fix=FEW, forbid=("zero2",), num_simulated=4).best.plan
    again = mw.plan(like=best, format="torchtitan", fix=FEW, forbid=("zero2",), num_simulated=4)
    assert again.best is again.today and again.changes == ()


def test_processes_on_cpus_have_no_today(tmp_path: Path) -> None:
    plan = mw.Plan.of(mw.Model("gpt2"), mw.Cluster("2xcpu"), mw.Workload(2, 64), pp=2)
    with pytest.raises(mw.PlanError, match="has no GPUs"):
        mw.plan(like=plan)
    with pytest.raises(mw.PlanError, match="is 4, the plan says 2"):
        mw.plan(like=plan, global_batch=4)
    with pytest.raises(mw.PlanError, match="those four"):
        mw.plan("gpt2", "4xH100", seq=1024)


def test_a_plan_goes_out_and_comes_in_by_its_own_methods(tmp_path: Path) -> None:
    plan = mw.Plan.load(written(tmp_path, "train.sh", MEGATRON), format="megatron", cluster="H100")
    text = plan.export("megatron", tmp_path / "again.sh")
    assert (tmp_path / "again.sh").read_text() == text and text.startswith("#!/bin/bash")
    assert mw.Plan.load(tmp_path / "again.sh", format="megatron", cluster="H100").tp == plan.tp == 8
    with pytest.raises(mw.PlanError, match="torchtitan cannot express"):
        plan.export("torchtitan", tmp_path / "job.toml")
    with pytest.raises(mw.PlanError, match="cannot be written"):
        plan.export("megatron", tmp_path / "no" / "job.sh")
    with pytest.raises(mw.UnknownNameError):
        mw.Plan.load(tmp_path / "train.sh", format="megatorn", cluster="H100")
