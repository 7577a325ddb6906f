"""ModelSpec: parameters to the unit, FLOPs per token, refusals."""

import dataclasses

import pytest

from meshwright.specs import ModelSpec, SpecError, model_from_config
from meshwright.specs.model_source import _presets
from tests.specs.configs import GPT2, LLAMA, QWEN2, QWEN3

SHAPES = [
    LLAMA,
    {**LLAMA, "num_key_value_heads": 6, "tie_word_embeddings": True},
    {**LLAMA, "head_dim": 10, "attention_bias": True, "mlp_bias": True},
    {**LLAMA, "num_key_value_heads": None, "mlp_bias": True, "vocab_size": 7},
    QWEN2,
    {**QWEN2, "tie_word_embeddings": True, "num_key_value_heads": 1},
    QWEN3,
    {key: value for key, value in QWEN3.items() if key != "head_dim"},
    {**QWEN3, "tie_word_embeddings": True, "attention_bias": True, "hidden_size": 60},
    GPT2,
    {**GPT2, "n_inner": 50, "tie_word_embeddings": False},
    {**GPT2, "n_inner": None},
]


@pytest.mark.parametrize("config", SHAPES, ids=range(len(SHAPES)))
def test_parameters_are_those_that_transformers_holds(config):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields = {key: value for key, value in config.items() if key != "model_type"}
    reference = transformers.AutoConfig.for_model(config["model_type"], **fields)
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
    assert all(by_layer[str(block)] == model.num_block_parameters for block in range(model.num_layers))
    head = model.num_norm_parameters + (0 if model.has_tied_embeddings else model.num_head_parameters)
    assert by_layer["head"] == head


def test_train_flops_per_token_by_hand():
    model = ModelSpec.decoder(2, 8, 2, intermediate_size=16, vocabulary_size=32)
    matrices = 2 * (8 * 24 + 8 * 8 + 3 * 8 * 16) + 8 * 32
    assert model.train_flops_per_token() == 6 * matrices
    # Attention: per block and query on average (S + 1) / 2 keys, two products of 2 * 8 FLOPs, three times.
    assert model.train_flops_per_token(7) == 6 * matrices + 2 * 3 * 2 * 2 * 8 * (7 + 1) / 2


def test_llama_8b_flops_are_six_a_matrix_parameter():
    model = model_from_config(_presets()["llama-3.1-8b"]["config"])
    assert model.num_matmul_parameters == model.num_parameters - 128256 * 4096 - 65 * 4096
    assert model.num_active_parameters == model.num_parameters == 8030261248


def test_decoder_fills_in_what_is_left_out():
    model = ModelSpec.decoder(4, 192, 6)
    assert (model.head_dim, model.num_kv_heads, model.intermediate_size) == (32, 6, 512)
    assert model.vocabulary_size == 256 and not model.has_tied_embeddings
    assert ModelSpec.from_dict(model.to_dict()) == model


def test_digest_ignores_names_only():
    model = ModelSpec.decoder(4, 64, 4)
    assert model.digest == dataclasses.replace(model, name="other", source="x").digest
    for change in ({"num_layers": 5}, {"rope_theta": 1e6}, {"has_tied_embeddings": True}):
        assert dataclasses.replace(model, **change).digest != model.digest


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
