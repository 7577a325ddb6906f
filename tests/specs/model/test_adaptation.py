"""Which parameters train: patterns, additions, counts by hand, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.specs.configs import GEMMA, GPT2, LLAMA, MIXTRAL, QWEN2_MOE, QWEN3_MOE

from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.error import SpecError
from meshwright.specs.model.adaptation import (
    backward_layers,
    first_trained_block,
    lora_choices,
    lora_scale,
    trained_block_parameters,
    trains,
    trains_table,
)
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter_name import executed_name

MODEL = ModelSpec.decoder(4, 32, 4, vocabulary_size=64)


def test_patterns_choose_by_the_executor_s_names() -> None:
    model = replace(MODEL, trained=("layers.2.qkv.*", "*_norm.weight"))
    assert trains(model, "layers.2.qkv.weight") and not trains(model, "layers.1.qkv.weight")
    assert trains(model, "final_norm.weight") and not trains_table(model, of_head=True)
    assert model.block_kind(2).trained == ("qkv.weight", "attention_norm.weight", "mlp_norm.weight")
    assert model.block_kinds(0, 4) == ((0, 3), (2, 1))
    assert model.num_trained_parameters == 32 * 96 + 9 * 32
    names = [parameter.name for parameter in trained_block_parameters(model, 2)]
    assert len(names) == 5 and names[0] == "model.layers.2.self_attn.q_proj.weight"


def test_without_patterns_all_train_or_additions_only() -> None:
    assert trains(MODEL, "head.weight") and not MODEL.is_adapted and MODEL.base is MODEL
    assert MODEL.num_trained_parameters == MODEL.num_parameters
    lora = replace(MODEL, lora_rank=2, lora_targets=("down",))
    assert not trains(lora, "head.weight") and trains(lora, "layers.0.down.lora_b.weight")
    assert lora.num_trained_parameters == 4 * 2 * (MODEL.intermediate_size + 32)
    assert lora_scale(lora) == 1.0 and lora_scale(replace(lora, lora_alpha=8.0)) == 4.0
    assert lora.num_parameters == MODEL.num_parameters and lora.base == MODEL


def test_a_tied_head_is_the_embedding() -> None:
    tied = replace(MODEL, has_tied_embeddings=True, trained=("embedding.*",))
    assert trains_table(tied, of_head=True) and trains_table(tied, of_head=False)
    apart = replace(MODEL, trained=("embedding.*",))
    assert not trains_table(apart, of_head=True)


def test_where_the_backward_begins() -> None:
    upper, first = replace(MODEL, trained=("layers.2.down.*",)), StageLayers(0, 3, True, False)
    assert first_trained_block(upper) == 2
    assert backward_layers(upper, first) == StageLayers(2, 1, False, False)
    assert backward_layers(upper, StageLayers(1, 3, False, True)) == StageLayers(1, 3, False, True)
    assert backward_layers(replace(MODEL, trained=("head.*",)), first) == StageLayers(3, 0, False, False)
    assert backward_layers(replace(MODEL, trained=("embedding.*",)), first) == first
    assert backward_layers(MODEL, first) == first


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora_rank": 2}, "lora_targets"),
        ({"lora_targets": ("qkv",)}, "lora_rank 0"),
        ({"lora_rank": 2, "lora_targets": ("q_proj",)}, "q_proj"),
        ({"lora_rank": 2, "lora_targets": ("qkv", "qkv")}, "qkv"),
        ({"lora_rank": -1, "lora_targets": ("qkv",)}, "lora_rank is -1"),
        ({"trained": ("layers.9.*",)}, "layers.9"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        replace(MODEL, **fields)
    assert caught.value.allowed


def test_families_without_names_are_refused() -> None:
    with pytest.raises(SpecError, match="frozen parameters of gemma models"):
        replace(model_from_config(GEMMA), trained=("*",))


def test_additions_go_beside_experts_not_to_them() -> None:
    model = replace(model_from_config(MIXTRAL), lora_rank=2, lora_targets=("qkv", "attention_output"))
    assert lora_choices(model) == model.lora_targets and not trains(model, "layers.0.mixture.router.weight")
    with pytest.raises(SpecError, match="gate_up") as caught:
        replace(model, lora_targets=("qkv", "gate_up"))
    assert caught.value.allowed == "qkv, attention_output"


def test_a_frozen_expert_costs_those_who_go_to_it_no_weight_gradient() -> None:
    """6 FLOPs a parameter that a token uses, 4 of a frozen one: of experts those it goes to."""
    whole = model_from_config(MIXTRAL)
    routers = replace(whole, trained=("layers.*.mixture.router.weight",))
    frozen = whole.num_matmul_parameters - whole.num_layers * whole.hidden_size * whole.num_experts
    assert routers.train_flops_per_token() == whole.train_flops_per_token() - 2 * frozen


@pytest.mark.parametrize(
    "config", [LLAMA, GPT2, MIXTRAL, QWEN2_MOE, QWEN3_MOE], ids=lambda config: config["model_type"]
)
def test_every_checkpoint_name_has_one_of_the_executor(config: dict[str, Any]) -> None:
    model = replace(model_from_config(config), has_tied_embeddings=False)
    names = {executed_name(model.architecture, parameter.name) for parameter in model.parameters()}
    assert {"embedding.weight", "layers.1.qkv.weight", "final_norm.weight", "head.weight"} <= names
    assert ("positions.weight" in names) == model.is_gpt2
