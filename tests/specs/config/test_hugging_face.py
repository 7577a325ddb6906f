"""config.json: what is missing or wrong is named, with the file and what is allowed."""

import pytest
from tests.specs.configs import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GEMMA3,
    GPT2,
    GPT_OSS,
    LLAMA,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
)

from meshwright.specs import ModelSpec, SpecError, model_from_config
from meshwright.specs.model.block import Routing


@pytest.mark.parametrize(
    ("config", "field"),
    [
        *((LLAMA, field) for field in LLAMA if field not in ("num_key_value_heads",)),
        *((GPT2, field) for field in GPT2),
        (QWEN2, "num_key_value_heads"),
        *((MIXTRAL, field) for field in ("num_local_experts", "num_experts_per_tok")),
        (QWEN2_MOE, "shared_expert_intermediate_size"),
        *(
            (DEEPSEEK_V3, field)
            for field in ("q_lora_rank", "kv_lora_rank", "v_head_dim", "n_shared_experts")
        ),
        *((DEEPSEEK_V3, field) for field in ("qk_rope_head_dim", "first_k_dense_replace")),
    ],
)
def test_missing_field_is_named_with_its_file(config, field):
    broken = {key: value for key, value in config.items() if key != field}
    with pytest.raises(SpecError) as caught:
        model_from_config(broken, where="somewhere/config.json")
    assert "somewhere/config.json" in str(caught.value) and repr(field) in str(caught.value)
    assert caught.value.allowed


def test_missing_field_shows_a_near_one_that_is_there():
    broken = {("hiden_size" if key == "hidden_size" else key): value for key, value in LLAMA.items()}
    with pytest.raises(SpecError, match="hiden_size"):
        model_from_config(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mixtral"},
        {"hidden_size": "48"},
        {"hidden_size": -48},
        {"hidden_size": 48.5},
        {"hidden_size": 47},
        {"num_key_value_heads": 4},
        {"hidden_act": "relu"},
        {"tie_word_embeddings": "yes"},
        {"rms_norm_eps": 0},
    ],
)
def test_wrong_values_are_refused_with_what_is_allowed(change):
    with pytest.raises(SpecError) as caught:
        model_from_config({**LLAMA, **change})
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK_V3, {"first_k_dense_replace": -1}, "first_k_dense_replace"),
        (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func"),
        (DEEPSEEK_V3, {"rope_interleave": False}, "rope_interleave"),
        (DEEPSEEK_V2, {"topk_method": "noaux_tc"}, "topk_method"),
        (DEEPSEEK_V2, {"norm_topk_prob": True}, "norm_topk_prob"),
        (GEMMA3, {"layer_types": ["full_attention"]}, "a list of 7 kinds"),
        (GEMMA3, {"hidden_activation": "silu"}, "hidden_activation"),
        (GPT_OSS, {"sliding_window": "4"}, "sliding_window"),
        (QWEN2_MOE, {"mlp_only_layers": ["one"]}, "mlp_only_layers"),
        (MIXTRAL, {"num_experts_per_tok": 6}, "6 of 5 experts"),
    ],
)
def test_wrong_fields_of_a_family_are_named(config, change, said):
    with pytest.raises(SpecError, match=said) as caught:
        model_from_config({**config, **change})
    assert caught.value.allowed


def test_rope_base_old_and_new_place():
    assert model_from_config({**LLAMA, "rope_theta": 5e5}).rope_theta == 5e5
    assert model_from_config({**LLAMA, "rope_parameters": {"rope_theta": 5e5}}).rope_theta == 5e5
    assert model_from_config(LLAMA).rope_theta == 10_000
    assert model_from_config(GEMMA3).rope_theta == 1e6 and model_from_config(GPT_OSS).rope_theta == 150_000
    both = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}
    assert model_from_config({**GEMMA3, "rope_parameters": both}).rope_theta == 5e5


def test_null_means_default_where_there_is_one():
    assert model_from_config({**LLAMA, "num_key_value_heads": None}).num_kv_heads == 6
    assert model_from_config({**LLAMA, "head_dim": None}).head_dim == 8
    assert model_from_config({**GPT2, "n_inner": None}).intermediate_size == 160


GROUPED = {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2}


@pytest.mark.parametrize(
    ("config", "routing"),
    [
        (MIXTRAL, Routing()),
        (QWEN2_MOE, Routing(has_unit_sum=False)),
        ({**QWEN2_MOE, "norm_topk_prob": True}, Routing()),
        (DEEPSEEK_V2, Routing(has_unit_sum=False)),
        (
            {**DEEPSEEK_V2, **GROUPED, "routed_scaling_factor": 16},
            Routing("softmax", 3, 2, has_unit_sum=False, gate_scale=16.0),
        ),
        (DEEPSEEK_V3, Routing("sigmoid", 2, 1, has_correction=True, gate_scale=2.5)),
    ],
    ids=str,
)  # fmt: skip
def test_routing_is_read(config, routing):
    model = model_from_config(config)
    assert model.experts.routing_in(model.architecture) == routing
    assert ModelSpec.from_dict(model.to_dict()) == model


def test_a_family_s_own_routing_is_not_said():
    """So a model keeps the digest it had before routing was known."""
    assert model_from_config(MIXTRAL).experts.routing is None
    assert model_from_config({**DEEPSEEK_V3, "n_group": None, "topk_group": None}).experts.routing is None
    changed = model_from_config({**QWEN2_MOE, "norm_topk_prob": True})
    assert changed.experts.routing is not None and changed.digest != model_from_config(QWEN2_MOE).digest


def test_a_family_of_another_name_and_the_same_files_is_read_as_that_one():
    assert model_from_config({**DEEPSEEK_V3, "model_type": "kimi_k2"}) == model_from_config(DEEPSEEK_V3)


@pytest.mark.parametrize(
    ("family", "lacking"),
    [
        ("llama4", "without positions"),
        ("llama4_text", "without positions"),
        ("qwen3_next", "linear attention"),
        ("glm4_moe", "partial_rotary_factor"),
        ("gemma3", "text_config"),
    ],
)
def test_a_family_whose_blocks_are_not_known_is_refused_with_what_lacks(family, lacking):
    with pytest.raises(SpecError, match=lacking) as caught:
        model_from_config({**LLAMA, "model_type": family})
    assert family in str(caught.value) and "deepseek_v3" in caught.value.allowed
