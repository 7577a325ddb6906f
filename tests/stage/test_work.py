"""StageWork: facts of a stage are those that are asked of the plan, and are worked out once."""

from __future__ import annotations

import pytest

from meshwright.specs import Cluster, Plan, Workload, load_model
from meshwright.stage import work as stage_work
from meshwright.stage.group.value_size import num_local_parameters
from meshwright.stage.saved.size import saving_context
from meshwright.stage.work import microbatch_shape, stage_works


def plan_of(model: str = "llama-3.2-1b") -> Plan:
    return Plan.of(load_model(model), Cluster("8xH100"), Workload(16, 2048), pp=2, tp=2, dtype="bfloat16")


@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt2", "deepseek-v3"])
def test_facts_are_those_of_the_plan(model: str) -> None:
    plan = plan_of(model)
    for work, layers in zip(stage_works(plan, plan.stages()), plan.stages(), strict=True):
        assert work.layers == layers and work.shape == microbatch_shape(plan)
        assert work.context == saving_context(plan)
        whole = sum(work.block_parameters) + work.num_end_parameters
        assert whole == sum(num_local_parameters(plan, layers))
        assert sum(count for _, count in work.kinds) == layers.num_blocks
        assert 0 < work.num_largest_block <= sum(work.block_parameters)


def test_a_fact_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(plan: Plan, layers: object) -> object:
        asked.append(layers)
        return (0, 0)

    monkeypatch.setattr(stage_work, "num_local_block_parameters", counted)
    work = stage_works(plan_of(), plan_of().stages())[0]
    assert work.block_parameters == work.block_parameters == (0, 0) and len(asked) == 1
