"""What one token costs: FLOPs by hand, and the published numbers of parameters it uses."""

import pytest
from tests.specs.configs import GPT_OSS

from meshwright.specs import ModelSpec, model_from_config
from meshwright.specs.config.source import _presets


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


# From model cards and papers: billions of parameters that one token uses. GPT-OSS's card leaves the token table out.
ACTIVE_BILLIONS = {
    "mixtral-8x7b": 12.9,  # Jiang et al. 2024, arXiv 2401.04088: "13B active"
    "mixtral-8x22b": 39.0,  # release notes: "39B active out of 141B"
    "qwen3-30b-a3b": 3.3,  # model card
    "qwen3-235b-a22b": 22.0,  # model card
    "deepseek-v2-lite": 2.4,  # model card, without the token table
    "deepseek-v3": 37.0,  # arXiv 2412.19437
    "gpt-oss-20b": 3.61,  # model card
    "gpt-oss-120b": 5.13,  # model card
}


@pytest.mark.parametrize("name", ACTIVE_BILLIONS)
def test_presets_with_experts_use_the_published_number_of_parameters(name):
    model = model_from_config(_presets()[name]["config"], name=name)
    table = model.num_embedding_parameters if name.startswith(("gpt-oss", "deepseek-v2")) else 0
    assert (model.num_active_parameters - table) / 1e9 == pytest.approx(ACTIVE_BILLIONS[name], rel=0.03)


def test_train_flops_of_deepseek_v3_by_hand():
    model = model_from_config(_presets()["deepseek-v3"]["config"])
    hidden, heads = 7168, 128
    attention = (
        hidden * 1536 + 1536 * heads * 192 + hidden * (512 + 64) + 512 * heads * 256 + heads * 128 * hidden
    )
    experts = hidden * 256 + 9 * 3 * hidden * 2048
    matrices = 61 * attention + 3 * 3 * hidden * 18432 + 58 * experts + 129280 * hidden
    assert model.train_flops_per_token() == 6 * matrices
    pairs = (
        61 * heads * (192 + 128) * (4096 + 1) / 2
    )  # per token: each key costs a query's and a value's width
    assert model.train_flops_per_token(4096) == 6 * matrices + 3 * 2 * pairs


def test_train_flops_through_a_window_by_hand():
    model = model_from_config({**GPT_OSS, "num_hidden_layers": 4})
    assert [block.attention.window for block in model.layers] == [4, 0, 4, 0]
    keys = [min(i + 1, 4) for i in range(10)]
    both = 2 * sum(keys) + 2 * sum(range(1, 11))
    attention = 3 * 2 * 2 * model.num_heads * model.head_dim * both / 10
    assert model.train_flops_per_token(10) - model.train_flops_per_token() == pytest.approx(attention)
