"""The variant: another routing function of the user's own model, which trains, or why not."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.executor.job.pool import Pool
from meshwright.specs.config.export import config_from_model
from meshwright.specs.config.source import load_model
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.specs.model.block import Routing
from meshwright.systems.moe.fs_moe.routing_function import FUNCTIONS, RoutingFunction


@pytest.mark.parametrize(
    ("gate", "routing", "num"),
    [("gshard", Routing(), 2), ("sigmoid", Routing("sigmoid", has_unit_sum=False), 8)],
)
def test_experts_of_all_layers_are_routed_so(gate: str, routing: Routing, num: int) -> None:
    model = load_model("qwen3-30b-a3b")
    make = catalog.filler("variant", f"fs_moe(gate={gate})")
    made = make(model)
    experts = [each.experts for each in made.layers if each.experts]
    found = {(each.routing_in(model.architecture), each.num_experts_per_token) for each in experts}
    assert len(experts) == model.num_layers and found == {(routing, num)}
    assert make(made) == made and made.num_parameters == model.num_parameters


def test_a_family_s_own_routing_is_not_said_again_so_that_it_is_still_exported() -> None:
    mixtral = load_model("mixtral-8x7b")
    assert RoutingFunction("gshard")(mixtral) == mixtral
    assert config_from_model(RoutingFunction("gshard")(mixtral))["num_experts_per_tok"] == 2
    with pytest.raises(SpecError, match="router_scores"):
        config_from_model(RoutingFunction("sigmoid")(mixtral))


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        ("expert_choice", "tokens behind it"),
        ("sigmoids", ", ".join(FUNCTIONS)),
    ],
)
def test_others_are_refused_with_the_reason(gate: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        RoutingFunction(gate)(load_model("mixtral-8x7b"))


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(SpecError, match="no experts"):
        RoutingFunction()(load_model("llama-3.2-1b"))


def test_cosines_have_routers_of_their_own() -> None:
    """Half as many numbers as experts: a projection to these, an embedding of each expert, and a temperature."""
    model = load_model("qwen3-30b-a3b")
    make = catalog.filler("variant", "fs_moe(gate=x_moe)")
    made = make(model)
    (routing,) = {each.experts.routing_in(model.architecture) for each in made.layers if each.experts}
    assert routing == Routing("softmax", has_unit_sum=False, cosine_rank=64) and make(made) == made
    matrix, cosine = 128 * model.hidden_size, 64 * (128 + model.hidden_size) + 1
    assert made.num_parameters - model.num_parameters == model.num_layers * (cosine - matrix)
    assert RoutingFunction("gshard")(made).num_parameters == model.num_parameters
    with pytest.raises(SpecError, match="router_cosine_rank"):
        config_from_model(made)
    with pytest.raises(SpecError, match="biases"):
        RoutingFunction("x_moe")(load_model("gpt-oss-20b"))


@pytest.mark.parametrize(
    ("gate", "said"), [("x_moe", "compare by cosines"), ("sigmoid", "scores of routers"), ("gshard", "")]
)
@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed"])
def test_no_script_for_another_program_is_silent_about_them(target: str, gate: str, said: str) -> None:
    model = RoutingFunction(gate)(load_model("mixtral-8x7b"))
    plan = mw.Plan.of(model, mw.Cluster("8xH100"), mw.Workload(64, 4096), dtype="bfloat16", ep=8, dp=8)
    try:
        plan.export(target)
        why = ""
    except MeshwrightError as refusal:
        why = str(refusal)
    assert said in why if said else "routers" not in why


def test_sigmoids_train_on_two_processes_as_on_one(gloo_pool: Pool) -> None:
    pytest.importorskip("torch")
    from meshwright.systems.moe.fs_moe import study

    model = RoutingFunction("sigmoid")(study.MODEL)
    found = [study.trained(model, num, 1, gloo_pool).parameters for num in (2, 1)]
    usual = study.trained(study.MODEL, 1, 1, gloo_pool).parameters
    off = [
        max(float((one[name] - found[1][name]).abs().max()) for name in usual) for one in (found[0], usual)
    ]
    assert off[0] < 1e-10 < 1e-4 < off[1]
