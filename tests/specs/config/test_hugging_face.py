"""config.json: what is missing or wrong is named, with the file and what is allowed."""

import pytest
from tests.specs.configs import DEEPSEEK_V3, GEMMA3, GPT2, GPT_OSS, LLAMA, MIXTRAL, QWEN2, QWEN2_MOE

from meshwright.specs import SpecError, model_from_config


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
