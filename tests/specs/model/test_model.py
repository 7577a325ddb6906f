"""ModelSpec: parameters to the unit, refusals."""

import copy
import json

import pytest
from tests.specs.configs import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GEMMA,
    GEMMA2,
    GEMMA3,
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

from meshwright.specs import ModelSpec, SpecError, model_from_config
from meshwright.specs.config.source import _presets

SHAPES = [
    LLAMA,
    {**LLAMA, "num_key_value_heads": 6, "tie_word_embeddings": True},
    {**LLAMA, "head_dim": 10, "attention_bias": True, "mlp_bias": True},
    {**LLAMA, "num_key_value_heads": None, "mlp_bias": True, "vocab_size": 7},
    QWEN2,
    {**QWEN2, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    {**QWEN3, "use_sliding_window": True, "layer_types": ["sliding_attention", *["full_attention"] * 2]},
    {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    {**QWEN2, "tie_word_embeddings": True, "num_key_value_heads": 1},
    QWEN3,
    {key: value for key, value in QWEN3.items() if key != "head_dim"},
    {**QWEN3, "tie_word_embeddings": True, "attention_bias": True, "hidden_size": 60},
    GPT2,
    {**GPT2, "n_inner": 50, "tie_word_embeddings": False},
    {**GPT2, "n_inner": None},
    *NEW_FAMILIES,
    {**MISTRAL, "head_dim": 10, "sliding_window": None, "tie_word_embeddings": True},
    {**MISTRAL, "num_key_value_heads": 6, "vocab_size": 7},
    {**MIXTRAL, "head_dim": 10, "sliding_window": 16, "num_experts_per_tok": 1},
    {**MIXTRAL, "num_local_experts": 1, "num_experts_per_tok": 1, "tie_word_embeddings": True},
    {**QWEN2_MOE, "qkv_bias": False, "mlp_only_layers": [1], "num_key_value_heads": 3},
    {**QWEN2_MOE, "decoder_sparse_step": 2, "head_dim": 14, "tie_word_embeddings": True},
    {**QWEN2_MOE, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3},
    {**QWEN3_MOE, "attention_bias": True, "decoder_sparse_step": 2, "num_hidden_layers": 5},
    {**QWEN3_MOE, "mlp_only_layers": [0, 2], "tie_word_embeddings": True, "hidden_size": 60},
    {**DEEPSEEK_V2, "q_lora_rank": 22, "attention_bias": True, "mlp_bias": True, "first_k_dense_replace": 0},
    {**DEEPSEEK_V2, "first_k_dense_replace": 4, "tie_word_embeddings": True, "v_head_dim": 9},
    {**DEEPSEEK_V3, "q_lora_rank": None, "attention_bias": True, "n_shared_experts": 3},
    {**DEEPSEEK_V3, "first_k_dense_replace": 9, "num_attention_heads": 3, "num_key_value_heads": 3},
    {**GEMMA, "attention_bias": True, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 54},
    {**GEMMA, "tie_word_embeddings": False, "num_key_value_heads": 6},
    {**GEMMA2, "attention_bias": True, "final_logit_softcapping": None, "num_hidden_layers": 4},
    {**GEMMA2, "tie_word_embeddings": False, "num_key_value_heads": 3, "attn_logit_softcapping": 20.0},
    {**GEMMA3, "sliding_window_pattern": 3, "attention_bias": True, "final_logit_softcapping": 12.0},
    {**GEMMA3, "tie_word_embeddings": False, "layer_types": ["full_attention"] * 6 + ["sliding_attention"]},
    {**GPT_OSS, "attention_bias": False, "head_dim": 20, "num_hidden_layers": 5},
    {**GPT_OSS, "tie_word_embeddings": True, "layer_types": ["full_attention"] * 3, "intermediate_size": 33},
]


@pytest.mark.parametrize("config", SHAPES, ids=range(len(SHAPES)))
def test_parameters_are_those_that_transformers_holds(config):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields = {key: value for key, value in config.items() if key != "model_type"}
    reference = transformers.AutoConfig.for_model(config["model_type"], **copy.deepcopy(fields))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(reference)
    ours = model_from_config(config)
    assert {p.name: p.shape for p in ours.parameters()} == {
        n: tuple(p.shape) for n, p in model.named_parameters()
    }
    assert ours.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    again = model_from_config(reference.to_dict())  # what transformers itself would save
    assert again.digest == ours.digest


@pytest.mark.parametrize("name", sorted(_presets()))
def test_presets_have_the_published_number_of_parameters(name):
    preset = _presets()[name]
    model = model_from_config(preset["config"], name=name)
    assert model.num_parameters == preset["published_num_parameters"]
    assert preset["source"] and preset["hub_id"]


@pytest.mark.parametrize("config", SHAPES, ids=range(len(SHAPES)))
def test_counts_by_layer_sum_to_the_whole(config):
    model = model_from_config(config)
    assert model.num_parameters == sum(p.num_elements for p in model.parameters())
    by_layer = {}
    for parameter in model.parameters():
        by_layer[parameter.layer] = by_layer.get(parameter.layer, 0) + parameter.num_elements
    assert by_layer["embedding"] == model.num_embedding_parameters
    assert all(by_layer[str(block)] == model.num_block_parameters(block) for block in range(model.num_layers))
    kinds = model.block_kinds(0, model.num_layers)
    assert sum(count for _, count in kinds) == model.num_layers
    assert len({model.block_kind(block) for block, _ in kinds}) == len(kinds)
    head = model.num_norm_parameters + (0 if model.has_tied_embeddings else model.num_head_parameters)
    assert by_layer["head"] == head


@pytest.mark.parametrize("config", SHAPES, ids=range(len(SHAPES)))
def test_active_parameters_are_those_of_a_model_with_only_the_chosen_experts(config):
    model = model_from_config(config)
    if not model.num_experts:
        assert model.num_active_parameters == model.num_parameters
        return
    chosen = model.changed(num_experts=model.experts.num_experts_per_token)
    num_blocks = sum(block.experts is not None for block in model.layers)
    columns = model.hidden_size + (1 if config["model_type"] == "gpt_oss" else 0)  # the router is whole
    router = num_blocks * columns * (model.num_experts - model.experts.num_experts_per_token)
    assert model.num_active_parameters == chosen.num_parameters + router


@pytest.mark.parametrize("config", NEW_FAMILIES, ids=lambda config: config["model_type"])
def test_models_of_every_family_survive_a_dictionary(config):
    model = model_from_config(config)
    again = ModelSpec.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model and again.digest == model.digest


@pytest.mark.parametrize(
    "change",
    [
        {"num_experts_per_token": 9},
        {"num_experts_per_token": 0},
        {"expert_intermediate_size": -1},
        {"dense_layers": (1, 0)},
        {"dense_layers": (4,)},
        {"sliding_window": 8},
        {"sliding_layers": (0,)},
        {"sliding_window": 1, "sliding_layers": (0,)},
        {"rotary_head_dim": 5},
        {"rotary_head_dim": 16},
        {"value_head_dim": 0},
        {"num_kv_heads": 2},
        {"key_value_rank": 0},
        {"final_logit_cap": -1.0},
    ],
)
def test_experts_and_latents_that_contradict_are_refused(change):
    model = model_from_config(DEEPSEEK_V3)
    with pytest.raises(SpecError) as caught:
        model.changed(**change)
    assert caught.value.allowed


def test_decoder_fills_in_what_is_left_out():
    model = ModelSpec.decoder(4, 192, 6)
    assert (model.head_dim, model.num_kv_heads, model.intermediate_size) == (32, 6, 512)
    assert model.vocabulary_size == 256 and not model.has_tied_embeddings
    assert ModelSpec.from_dict(model.to_dict()) == model


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_layers": 0, "hidden_size": 64, "num_heads": 4},
        {"num_layers": 2, "hidden_size": 65, "num_heads": 4},
        {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 3},
        {"num_layers": 2, "hidden_size": 60, "num_heads": 4, "head_dim": 15},
        {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocabulary_size": True},
    ],
)
def test_dimensions_that_contradict_are_refused(arguments):
    with pytest.raises(SpecError) as caught:
        ModelSpec.decoder(**arguments)
    assert caught.value.allowed
