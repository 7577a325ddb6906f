"""Operators of a stage: FLOPs by the closed forms, backward pairs, stages that sum to the model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.specs import (
    MicrobatchShape,
    ModelSpec,
    SpecError,
    UnknownNameError,
    model_from_config,
    split_layers,
    stage_layers,
    stage_operators,
    step_operators,
    total_bytes,
    total_flops,
)
from tests.specs.configs import GPT2, LLAMA, QWEN2, QWEN3

CONFIGS = {config["model_type"]: config for config in (LLAMA, GPT2, QWEN2, QWEN3)}
SHAPE = MicrobatchShape(num_sequences=2, sequence_length=16)


def whole(model, name, shape=SHAPE):
    return stage_operators(model, stage_layers((model.num_layers,))[0], name, shape)


def flops_of(operators, kind):
    return total_flops(operator for operator in operators if operator.kind == kind)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_products_cost_two_flops_a_parameter_and_token(architecture):
    model = model_from_config(CONFIGS[architecture])
    forward = 2 * model.num_matmul_parameters * SHAPE.num_tokens
    assert flops_of(whole(model, "F"), "matmul") == forward
    assert flops_of(whole(model, "I"), "matmul") == forward
    assert flops_of(whole(model, "W"), "matmul") == forward
    assert flops_of(whole(model, "B"), "matmul") == 2 * forward
    assert whole(model, "R") == whole(model, "F")


@pytest.mark.parametrize("architecture", CONFIGS)
def test_attention_is_causal_two_products_forward_and_five_backward(architecture):
    model = model_from_config(CONFIGS[architecture])
    num_pairs = 16 * 17 / 2
    product = 2 * model.num_heads * num_pairs * 2 * model.head_dim * model.num_layers
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
        return sorted((o.shape, o.count) for o in whole(model, name) if o.kind == "matmul")

    forward = shapes("F")
    assert shapes("I") == sorted(((m, k, n), count) for (m, n, k), count in forward)
    assert shapes("W") == sorted(((n, k, m), count) for (m, n, k), count in forward)


@settings(max_examples=30)
@given(st.sampled_from(sorted(CONFIGS)), st.integers(1, 5), st.sampled_from(["F", "I", "W"]))
def test_stages_sum_to_the_whole_model(architecture, num_stages, name):
    model = model_from_config(CONFIGS[architecture])
    stages = stage_layers(split_layers(model.num_layers, num_stages))
    parts = [operator for stage in stages for operator in stage_operators(model, stage, name, SHAPE)]
    assert total_flops(parts) == total_flops(whole(model, name))
    assert total_bytes(parts) == total_bytes(whole(model, name))


def test_tensor_parallel_degree_divides_the_products():
    model = ModelSpec.decoder(2, 64, 4, intermediate_size=96, vocabulary_size=32)
    full, half = whole(model, "F"), whole(model, "F", SHAPE._replace(tp=2))
    assert flops_of(half, "matmul") * 2 == flops_of(full, "matmul")
    assert flops_of(half, "attention") * 2 == flops_of(full, "attention")
    assert flops_of(half, "norm") == flops_of(full, "norm")
    with pytest.raises(SpecError, match="num_heads 4"):
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
    (operator,) = step_operators(1000)
    assert operator.bytes == 7 * 4 * 1000 and operator.kind == "optimizer"


def test_unknown_pass_is_refused():
    with pytest.raises(UnknownNameError, match="compute of a stage"):
        whole(ModelSpec.decoder(1, 8, 2), "Q")
