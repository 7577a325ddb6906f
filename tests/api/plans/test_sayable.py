"""Plans that another program can be told: every one that is shown, and the faster one that it cannot, with the reason."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.api.plans.sayable import frameworks, refusals
from meshwright.specs import Cluster
from meshwright.specs.error import PlanError, UnknownNameError

JOB = ("gpt2", "4xH100")
SIZES = {"global_batch": 16, "seq": 1024, "num_simulated": 8}


@pytest.mark.parametrize(
    "target",
    ["megatron", *(pytest.param(each, marks=pytest.mark.slow) for each in ("torchtitan", "deepspeed"))],
)
def test_every_plan_can_be_told_and_its_export_is_written(target: str) -> None:
    found = mw.plan("llama-3.1-8b", "8xH100", framework=target, risk=1.0, **SIZES)
    for each in found:
        assert target in frameworks(each.plan, each.cluster)
        assert mw.export_plan(each.plan, target).text


def test_the_faster_plan_that_cannot_be_told_is_named() -> None:
    """Megatron-LM has no words for a schedule that splits backwards."""
    fix = {
        "pp": 4,
        "schedule": ("1f1b", "zb_h2"),
        "recompute": "none",
        "sharding": "none",
        "microbatch_size": 1,
    }
    found = mw.plan("llama-3.2-1b", "4xH100", framework="megatron", fix=fix, forbid=("vocabulary",), **SIZES)
    (over,) = found.passed_over
    assert over.plan.step.value < found[0].step.value and over.plan.plan.schedule == "zb_h2"
    assert "megatron cannot be told it: " in over.why and "schedule" in over.why
    assert refusals(over.plan.plan, "megatron", Cluster("4xH100"))
    assert frameworks(over.plan.plan, Cluster("4xH100")) == ()
    with pytest.raises(PlanError, match="megatron cannot say a plan with"):
        mw.plan("llama-3.2-1b", "4xH100", framework="megatron", fix={**fix, "schedule": "zb_h2"}, **SIZES)


def test_tokens_pass_beside_experts_where_the_program_can_and_nobody_decided() -> None:
    """Megatron-LM can, as our own executor; torchtitan cannot."""
    fix = {"tp": 1, "cp": 1, "pp": 1, "ep": 8, "recompute": "selective", "microbatch_size": 1}
    job, sizes = ("mixtral-8x7b", "4x8xH200"), {"global_batch": 128, "seq": 4096, "num_simulated": 2}
    plain = mw.plan(*job, fix=fix, risk=1.0, **sizes)
    assert "ep" in plain[0].plan.overlap
    found = mw.plan(*job, framework="megatron", fix=fix, risk=1.0, **sizes)
    best, without = found[0], next(each for each in found if "ep" not in each.plan.overlap)
    assert "ep" in best.plan.overlap and best.step.value < without.step.value
    assert "--overlap-moe-expert-parallel-comm" in mw.export_plan(best.plan, "megatron").text
    assert len({each.plan for each in found}) == len(found)
    assert any("overlap" in each.choice for each in refusals(best.plan, "torchtitan", Cluster("4x8xH200")))
    decided = mw.plan(
        *job, framework="megatron", fix={**fix, "overlap": ("reduce", "gather")}, risk=1.0, **sizes
    )
    assert not any("ep" in each.plan.overlap for each in decided)


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="framework"):
        mw.plan(*JOB, framework="megatrom", **SIZES)
    with pytest.raises(PlanError, match="whose processes only meshwright runs"):
        mw.plan("gpt2", "2xcpu", framework="megatron", **SIZES)
    with pytest.raises(PlanError, match="a chance from 0 to 1"):
        mw.plan(*JOB, risk=1.5, **SIZES)
    with pytest.raises(PlanError, match="--for with --planner"):
        mw.plan(*JOB, framework="megatron", planner="megatron_rules", global_batch=16, seq=1024)
