"""Operators of a stage: FLOPs by the closed forms, backward pairs, stages that sum to the model."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.specs.configs import DEEPSEEK_V2, DEEPSEEK_V3, GPT2, LLAMA, NEW_FAMILIES, QWEN2, QWEN2_MOE, QWEN3

from meshwright.specs import (
    ModelSpec,
    PlanError,
    SpecError,
    UnknownNameError,
    load_model,
    model_from_config,
    split_layers,
    stage_layers,
    total_bytes,
    total_flops,
)
from meshwright.specs.plan.optimizer import AdamW
from meshwright.stage.operator.expert import GroupedLinear
from meshwright.stage.operator.layer import MicrobatchShape, step_operators
from meshwright.stage.operator.stage import block_operators, stage_operators

CONFIGS = {config["model_type"]: config for config in (LLAMA, GPT2, QWEN2, QWEN3, *NEW_FAMILIES)}
LATENT = ("deepseek_v2", "deepseek_v3")
SHAPE = MicrobatchShape(num_sequences=2, sequence_length=16)


def whole(model, name, shape=SHAPE):
    return stage_operators(model, stage_layers((model.num_layers,))[0], name, shape)


def flops_of(operators, *kinds):
    return total_flops(operator for operator in operators if operator.kind in kinds)


def products(operators):
    return flops_of(operators, "matmul", "grouped_matmul")


@pytest.mark.parametrize("architecture", CONFIGS)
def test_products_cost_two_flops_a_parameter_and_token(architecture):
    model = model_from_config(CONFIGS[architecture])
    forward = 2 * model.num_matmul_parameters * SHAPE.num_tokens
    assert products(whole(model, "F")) == forward
    assert products(whole(model, "I")) == forward
    assert products(whole(model, "W")) == forward
    assert products(whole(model, "B")) == 2 * forward
    assert whole(model, "R") == whole(model, "F")


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name not in LATENT])
def test_attention_is_causal_two_products_forward_and_five_backward(architecture):
    model = model_from_config(CONFIGS[architecture])
    num_pairs = sum(
        min(query + 1, model.layers[block].attention.window or 16)
        for block in range(model.num_layers)
        for query in range(16)
    )
    product = 2 * model.num_heads * num_pairs * 2 * model.head_dim
    assert flops_of(whole(model, "F"), "attention") == 2 * product
    assert flops_of(whole(model, "I"), "attention") == 5 * product
    assert flops_of(whole(model, "W"), "attention") == 0


@pytest.mark.parametrize("architecture", CONFIGS)
def test_full_backward_is_its_two_halves(architecture):
    model = model_from_config(CONFIGS[architecture])
    both, halves = whole(model, "B"), (*whole(model, "I"), *whole(model, "W"))
    assert total_flops(both) == total_flops(halves) and total_bytes(both) == total_bytes(halves)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_forward_product_has_its_pair_of_gradients(architecture):
    model = model_from_config(CONFIGS[architecture])

    def shapes(name):
        kinds = ("matmul", "grouped_matmul")
        return Counter({(o.shape[:-3], o.shape[-3:]): o.count for o in whole(model, name) if o.kind in kinds})

    forward = shapes("F")
    assert shapes("I") == {(groups, (m, k, n)): count for (groups, (m, n, k)), count in forward.items()}
    assert shapes("W") == {(groups, (n, k, m)): count for (groups, (m, n, k)), count in forward.items()}


@settings(max_examples=30)
@given(st.sampled_from(sorted(CONFIGS)), st.integers(1, 5), st.sampled_from(["F", "I", "W"]))
def test_stages_sum_to_the_whole_model(architecture, num_stages, name):
    model = model_from_config(CONFIGS[architecture])
    stages = stage_layers(split_layers(model.num_layers, num_stages))
    parts = [operator for stage in stages for operator in stage_operators(model, stage, name, SHAPE)]
    assert total_flops(parts) == total_flops(whole(model, name))
    assert total_bytes(parts) == total_bytes(whole(model, name))


def test_latent_attention_by_hand():
    model = model_from_config(DEEPSEEK_V3)
    found = {o.label: o for o in block_operators(model, "F", MicrobatchShape(1, 8))}
    heads, pairs = 6, 8 * 9 / 2
    assert found["attention"].flops == heads * pairs * 2 * (16 + 14)
    assert found["attention"].shape == (1, heads, heads, 8, 15, 1)
    assert found["attention"].bytes == 4 * 8 * heads * (16 + 16 + 14 + 14)
    assert found["query down"].shape == (8, 26, 48) and found["query up"].shape == (8, heads * 16, 26)
    assert found["key-value down"].shape == (8, 20 + 6, 48)
    assert found["key-value up"].shape == (8, heads * (10 + 14), 20)
    assert found["output"].shape == (8, 48, heads * 14)
    assert found["query latent norm"].shape == (8, 26) and found["key-value latent norm"].shape == (8, 20)
    assert found["rotary, heads"].flops == 3 * 8 * (heads + 1) * 6
    (backward,) = (o for o in block_operators(model, "I", MicrobatchShape(1, 8)) if o.kind == "attention")
    assert backward.flops == heads * pairs * 2 * (3 * 16 + 2 * 14)


def test_experts_by_hand():
    model = model_from_config(QWEN2_MOE)  # 3 of 6 experts 20 wide, shared 28 wide with a gate, hidden 48
    found = {o.label: o for o in block_operators(model, "F", MicrobatchShape(1, 8))}
    rows = 8 * 3
    assert found["router"].shape == (8, 6, 48) and found["routing"].shape == (8, 6, 3)
    assert found["experts gate_up"].shape == (6, rows // 6, 2 * 20, 48)
    assert found["experts gate_up"].flops == 2 * rows * 48 * 40
    assert found["experts gate_up"].bytes == 4 * (rows * 48 + rows * 40 + 6 * 48 * 40)
    assert found["experts down"].shape == (6, rows // 6, 48, 20)
    assert found["dispatch"].bytes == 4 * 2 * rows * 48 and found["combine"].bytes == 4 * (rows + 8) * 48
    assert found["shared gate_up"].shape == (8, 56, 48) and found["shared gate"].shape == (8, 1, 48)
    weight = {o.label: o for o in block_operators(model, "W", MicrobatchShape(1, 8))}
    assert weight["experts down dW"].bytes == 4 * (rows * 48 + rows * 20 + 2 * 6 * 48 * 20)


def test_expert_parallel_devices_have_fewer_experts_and_as_many_rows():
    model = model_from_config(QWEN2_MOE)
    one, three = (whole(model, "F", SHAPE._replace(ep=ep)) for ep in (1, 3))
    assert flops_of(one, "grouped_matmul") == flops_of(three, "grouped_matmul")
    assert [o.shape[:2] for o in one if o.label == "experts down"] == [(6, 32 * 3 // 6)]
    assert [o.shape[:2] for o in three if o.label == "experts down"] == [(2, 32 * 3 // 2)]
    with pytest.raises(SpecError, match="does not divide 6 experts"):
        whole(model, "F", SHAPE._replace(ep=4))


@given(st.integers(1, 7), st.integers(1, 40))
def test_rows_that_do_not_divide_by_the_experts_keep_their_flops(num_groups, rows):
    product = GroupedLinear("x", num_groups, rows, 3, 5, False).forward(MicrobatchShape(1, 1))
    assert product.flops == 2 * rows * 3 * 5
    assert product.shape[0] * product.shape[1] >= rows > (product.shape[1] - 1) * num_groups


# A whole forward of published models, written out from their dimensions: (projections of a block and token,
# its MLP, heads, width of a query plus a value, windows), all in numbers; a second book beside the operators'.
def published_forward_flops(name, num_tokens):
    def pairs(window=None):
        return sum(min(query + 1, window or num_tokens) for query in range(num_tokens))

    if name == "mixtral-8x7b":
        block = 4096 * (4096 + 1024 + 1024) + 4096 * 4096 + 4096 * 8 + 2 * 3 * 4096 * 14336
        return 32 * (2 * block * num_tokens + 2 * 32 * (128 + 128) * pairs()) + 2 * 4096 * 32000 * num_tokens
    if name == "deepseek-v2-lite":
        attention = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
        mlps = 3 * 2048 * 10944 + 26 * (2048 * 64 + (6 + 2) * 3 * 2048 * 1408)
        scores = 27 * 2 * 16 * (192 + 128) * pairs()
        return 2 * (27 * attention + mlps + 2048 * 102400) * num_tokens + scores
    if name == "gpt-oss-20b":
        attention = 2880 * (4096 + 512 + 512) + 4096 * 2880
        block = attention + 2880 * 32 + 4 * 3 * 2880 * 2880
        scores = 12 * 2 * 64 * 128 * (pairs() + pairs(128))
        return 2 * (24 * block + 2880 * 201088) * num_tokens + scores
    block = 3584 * (4096 + 2048 + 2048) + 4096 * 3584 + 3 * 3584 * 14336  # gemma-2-9b
    scores = 21 * 2 * 16 * 512 * (pairs() + pairs(4096))
    return 2 * (42 * block + 3584 * 256000) * num_tokens + scores


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-2-9b"])
@pytest.mark.parametrize("num_tokens", [64, 6000])
def test_forward_of_published_models_is_the_closed_form(name, num_tokens):
    forward = whole(load_model(name), "F", MicrobatchShape(1, num_tokens, "bfloat16"))
    counted = flops_of(forward, "matmul", "grouped_matmul", "attention")
    assert counted == published_forward_flops(name, num_tokens)


def test_gemma_scales_its_rows_caps_its_logits_and_has_four_norms():
    model = model_from_config(CONFIGS["gemma2"])
    found = {o.label: o for o in whole(model, "F")}
    assert found["norm"].count == 4 * model.num_layers + 1 and found["scale"].shape == (32, 48)
    assert found["logit cap"].bytes == 4 * 6 * 32 * 100
    assert "logit cap" not in {o.label for o in whole(model_from_config(CONFIGS["gemma"]), "F")}


def test_tensor_parallel_degree_divides_heads_and_experts_but_not_latents():
    model = model_from_config({**DEEPSEEK_V2, "q_lora_rank": 22})
    full, half = (
        {o.label: o for o in block_operators(model, "F", SHAPE._replace(tp=tp), 1)} for tp in (1, 2)
    )
    for label in ("query up", "key-value up", "output", "attention", "experts gate_up", "shared down"):
        assert half[label].flops * 2 == full[label].flops
    for label in ("query down", "key-value down", "router"):
        assert half[label].flops == full[label].flops


def test_tensor_parallel_degree_divides_the_products():
    model = ModelSpec.decoder(2, 64, 4, intermediate_size=96, vocabulary_size=32)
    full, half = whole(model, "F"), whole(model, "F", SHAPE._replace(tp=2))
    assert flops_of(half, "matmul") * 2 == flops_of(full, "matmul")
    assert flops_of(half, "attention") * 2 == flops_of(full, "attention")
    assert flops_of(half, "norm") == flops_of(full, "norm")
    with pytest.raises(PlanError, match="tp=3 does not divide the 4 heads"):
        whole(model, "F", SHAPE._replace(tp=3))


def test_bytes_follow_the_number_format_and_flops_do_not():
    model = ModelSpec.decoder(2, 64, 4)
    narrow = whole(model, "B", SHAPE._replace(dtype="bfloat16"))
    assert total_bytes(narrow) * 2 == total_bytes(whole(model, "B"))
    assert total_flops(narrow) == total_flops(whole(model, "B"))


def test_one_block_by_hand():
    model = ModelSpec.decoder(1, 8, 2, intermediate_size=16, vocabulary_size=40)
    found = {o.label: o for o in whole(model, "F", MicrobatchShape(1, 4))}
    assert found["qkv"].shape == (4, 24, 8) and found["gate_up"].shape == (4, 32, 8)
    assert found["vocabulary"].shape == (4, 40, 8)
    assert found["qkv"].bytes == 4 * (4 * 8 + 8 * 24 + 4 * 24)
    assert found["residual"].count == 2 and found["residual"].bytes == 4 * 3 * 4 * 8
    weight = {o.label: o for o in whole(model, "W", MicrobatchShape(1, 4))}
    assert weight["qkv dW"].bytes == 4 * (4 * 24 + 4 * 8 + 2 * 24 * 8)


def test_adamw_reads_four_and_writes_three_numbers_a_parameter():
    (operator,) = step_operators(1000, "float32", AdamW())
    assert operator.bytes == 7 * 4 * 1000 and operator.kind == "optimizer"


def test_unknown_pass_is_refused():
    with pytest.raises(UnknownNameError, match="compute of a stage"):
        whole(ModelSpec.decoder(1, 8, 2), "Q")
