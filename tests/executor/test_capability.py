"""What the executor runs of plans and builds of models; it refuses the rest."""

import re
from dataclasses import replace

import pytest

from meshwright.executor.capability import check_plan, unexecuted_features
from meshwright.specs import Cluster, ModelSpec, Plan, PlanError, SpecError, Workload, model_from_config
from meshwright.specs.plan.plan import PassOption
from tests.specs.configs import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT2,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    NEW_FAMILIES,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
)

MODEL = ModelSpec.decoder(6, 64, 4)
CLUSTER = Cluster("8xcpu")

EXECUTED_FAMILIES = (
    LLAMA,
    QWEN2,
    QWEN3,
    GPT2,
    MISTRAL,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT_OSS,
)
UNEXECUTED_FAMILIES = [config for config in NEW_FAMILIES if config not in EXECUTED_FAMILIES]


def test_families_that_the_executor_builds_are_told_from_others():
    assert not any(unexecuted_features(model_from_config(config)) for config in EXECUTED_FAMILIES)
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    assert unexecuted_features(model_from_config({**QWEN2, "rope_scaling": dynamic})) == (
        "dynamic rotary scaling",
    )
    for config in UNEXECUTED_FAMILIES:
        assert unexecuted_features(model_from_config(config))
    in_eights = model_from_config({**DEEPSEEK_V3, "n_group": None, "topk_group": None})
    assert unexecuted_features(in_eights) == ("experts that its groups do not divide",)


@pytest.mark.parametrize("config", UNEXECUTED_FAMILIES, ids=lambda config: config["model_type"])
def test_the_executor_refuses_what_it_would_build_wrongly(config):
    pytest.importorskip("torch")
    from meshwright.executor.models.decoder import build_stage

    model = model_from_config(config, name="tiny")
    with pytest.raises(SpecError, match=f"tiny has {unexecuted_features(model)[0]}") as caught:
        build_stage(model, range(1), True, False)
    assert caught.value.allowed and caught.value.next


@pytest.mark.parametrize(
    ("choices", "missing"),
    [
        ({"dp": 2}, ()),
        ({"dp": 2, "recompute": "full", "reduction_dtype": "float32", "master_dtype": "float32"}, ()),
        ({"dp": 2, "recompute": "full", "recompute_blocks": (2, 2, 1, 1)}, ()),
        ({"dp": 1, "tp": 2}, ()),
        ({"dp": 1, "cp": 2}, ()),
        ({"dp": 1, "cp": 2, "context": "ulysses"}, ()),
        ({"pp": 2, "dp": 1, "cp": 2, "tp": 2, "sequence_parallel": True}, ()),
        ({"dp": 1, "cp": 2, "vocabulary": "one_barrier"}, ("vocabulary=one_barrier with cp=2",)),
        ({"ep": 2}, ()),
        ({"vocabulary": "one_barrier", "ep": 2}, ("vocabulary=one_barrier with ep=2",)),
        ({"dtype": "bfloat16", "master_dtype": "float32"}, ()),
        ({"dtype": "bfloat16", "reduction_dtype": "float32"}, ()),
        ({"sharding": "zero1"}, ()),
        ({"float8": "rowwise"}, ("float8=rowwise",)),
        ({"vocabulary": "interlaced"}, ()),
        ({"vocabulary": "interlaced", "schedule": "gpipe"}, ("vocabulary=interlaced with schedule=gpipe",)),
        ({"vocabulary": "one_barrier", "dp": 1, "tp": 2}, ("vocabulary=one_barrier with tp=2",)),
        ({"attention": "unfused"}, ("attention=unfused",)),
        ({"recompute": "selective"}, ()),
        ({"recompute": "selective", "recompute_blocks": (1, 0, 0, 0)}, ("recompute_blocks=(1, 0, 0, 0)",)),
        (
            {"recompute": "selective", "vocabulary": "one_barrier"},
            ("recompute=selective with vocabulary=one_barrier",),
        ),
        ({"recompute": "full", "recompute_blocks": (1, 0, 0, 0)}, ("recompute_blocks=(1, 0, 0, 0)",)),
        (
            {"vocabulary": "one_barrier", "recompute": "selective_op"},
            ("recompute=selective_op with vocabulary=one_barrier",),
        ),
    ],
    ids=str,
)
def test_what_the_executor_does_not_run_is_listed(choices, missing):
    found = Plan.of(MODEL, CLUSTER, Workload(32, 128), **{"pp": 4, **choices})
    if not missing:
        check_plan(found)
        return
    with pytest.raises(PlanError, match="the executor does not run") as caught:
        check_plan(found)
    assert caught.value.given == "the executor does not run " + ", ".join(missing)


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "low_bandwidth_partitioning(gradients=2)"])
def test_stages_connected_beside_the_path_want_whole_gradients_whatever_divides_them(sharding):
    connected = PassOption("connect_stages", {"edges": ((0, 2),)})
    plan = Plan.of(MODEL, CLUSTER, Workload(32, 128), pp=4, dp=2, sharding=sharding)
    with pytest.raises(PlanError, match=re.escape(f"sharding={sharding} with connect_stages")):
        check_plan(replace(plan, passes=(connected,)))


def test_sequences_that_do_not_divide_are_refused():
    with pytest.raises(PlanError, match=r"a sequence of 126 tokens over cp\(2\), zigzag"):
        check_plan(Plan.of(MODEL, CLUSTER, Workload(32, 126), pp=4, dp=1, cp=2))


def test_experts_on_a_part_of_a_context_axis_are_executed():
    experts = model_from_config(QWEN3_MOE, name="experts")
    degrees = {"cp": 4, "tp": 2, "ep": 4, "etp": 1, "sequence_parallel": True}
    found = Plan.of(experts, CLUSTER, Workload(32, 128), **degrees)
    check_plan(found)
