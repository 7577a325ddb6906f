"""Kept bytes per token against what the executed decoder keeps alive."""

import pytest
from tests.specs.configs import DEEPSEEK_V3, GPT2, LLAMA, NEW_FAMILIES, QWEN2, QWEN2_MOE, QWEN3

from meshwright.specs import ModelSpec, StageLayers, model_from_config, split_layers, stage_layers
from meshwright.stage.saved.saved import (
    block_saved,
    boundary_bytes_per_token,
    num_stage_expert_parameters,
    num_stage_parameters,
    pending_bytes_per_token,
    pending_gradient_bytes_per_token,
    saved_bytes_per_token,
)

CONFIGS = {config["model_type"]: config for config in (LLAMA, GPT2, QWEN2, QWEN3)}
FIRST, MIDDLE, LAST = (
    StageLayers(0, 1, True, False),
    StageLayers(1, 1, False, False),
    StageLayers(2, 1, False, True),
)
SEQUENCE = 32


def measured_bytes(model, layers, num_samples=2):
    """(kept from F to B, kept from I to W): live storages, parameters left out, per microbatch."""
    torch = pytest.importorskip("torch")
    from meshwright.executor.models.decoder import build_stage
    from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
    from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering

    blocks = range(layers.first_block, layers.first_block + layers.num_blocks)
    stage = build_stage(model, blocks, layers.has_embedding, layers.has_head)
    tokens = torch.randint(model.vocabulary_size, (num_samples, SEQUENCE))
    x = tokens if layers.has_embedding else torch.randn(*tokens.shape, model.hidden_size, requires_grad=True)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor stays, so no address repeats
        return tensor

    queue = WeightGradientQueue("stage")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), registering(queue):
        y = stage(x)
        if layers.has_head:
            y = token_cross_entropy(y, tokens, 1.0)
    with deferring(queue):
        torch.autograd.backward(y, None if layers.has_head else torch.randn_like(y))
    return sum(size for size, _ in kept.values()), queue.pending_bytes()


@pytest.mark.parametrize("layers", [FIRST, MIDDLE, LAST], ids=["first", "middle", "last"])
@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("num_samples", [1, 2])
def test_counts_are_those_of_the_executed_decoder(architecture, layers, num_samples):
    model = model_from_config(CONFIGS[architecture])
    saved, pending = measured_bytes(model, layers, num_samples)
    num_tokens = num_samples * SEQUENCE
    ours = (
        saved_bytes_per_token(model, layers) * num_tokens,
        pending_bytes_per_token(model, layers) * num_tokens,
    )
    if architecture == "gpt2" and layers.has_embedding:  # positions are counted once for each sequence
        assert 0 <= ours[0] - saved <= 8 * num_tokens
        assert 0 <= ours[1] - pending <= (8 + 4 * model.hidden_size) * num_tokens
        return
    assert ours[1] == pending
    assert ours[0] == pytest.approx(saved, abs=16)  # a few scalars of the loss


def by_parameters(model, block, sizes):
    """Sum over a block's matrices of what each has per token, from names and shapes alone."""
    total = 0
    for parameter in model.parameters():
        if parameter.layer == str(block) and parameter.is_matmul:
            is_transposed = parameter.is_expert and model.has_expert_bias
            num_out, num_in = parameter.shape[-2:][:: -1 if is_transposed else 1]
            total += (model.experts.num_experts_per_token if parameter.is_expert else 1) * sizes(
                num_out, num_in
            )
    return total


@pytest.mark.parametrize(
    "config", [*CONFIGS.values(), *NEW_FAMILIES], ids=lambda config: config["model_type"]
)
def test_pending_gradients_are_the_outputs_of_all_that_has_parameters(config):
    model = model_from_config(config)
    if model.is_gpt2:  # stores (inputs, outputs)
        return
    for block in range(model.num_layers):
        norms = sum(
            p.shape[0]
            for p in model.parameters()
            if p.layer == str(block)
            and "norm" in p.name
            and not p.name.endswith(("q_norm.weight", "k_norm.weight"))
        )
        heads = model.attention.qkv_size if model.attention.has_query_key_norm else 0
        expected = by_parameters(model, block, lambda num_out, num_in: num_out) + norms + heads
        stage = StageLayers(block, 1, False, False)
        assert pending_gradient_bytes_per_token(model, stage, "float32") == 4 * expected
        kept = saved_bytes_per_token(model, stage) + 4 * expected
        assert pending_bytes_per_token(model, stage) < kept  # inputs of projections are among what F keeps


def test_kept_by_experts_by_hand():
    """3 of 6 experts 20 wide, a gated shared one 28 wide, hidden 48, 6 heads and 2 key-value heads of 8."""
    model = model_from_config(QWEN2_MOE)
    attention = 48 + 2 + 48 + (48 + 16 + 16) + 48 + 48 + 48
    routed = 6 + 3 + 3 * (48 + 48) + 3 * 4 * 20
    shared = 4 * 28 + 48 + 1
    assert saved_bytes_per_token(model, MIDDLE) == 4 * (attention + routed + shared) + 3 * 8
    rows = (48 + 20) * 3 + 28  # inputs of experts and of the shared one's down
    norms = 2 * (48 + 1)
    inputs = norms + 2 * 48 + 48 + rows
    outputs = 2 * 48 + 80 + 48 + 6 + 3 * (40 + 48) + 56 + 48 + 1
    assert pending_bytes_per_token(model, MIDDLE) == 4 * (inputs + outputs)


def test_kept_by_latent_attention_by_hand():
    """6 heads, queries of 10 + 6 from 26 numbers, keys from 20, values of 14; block 0 has a dense MLP 80 wide."""
    model = model_from_config(DEEPSEEK_V3)
    latents = 26 + 26 + (20 + 6) + 20 + 2
    heads = 6 * (16 + 16 + 14 + 14)
    hidden = 48 + 2 + 48 + 48 + 48
    assert saved_bytes_per_token(model, FIRST) == 4 * (hidden + latents + heads + 4 * 80) + 8
    dense, with_experts = (saved_bytes_per_token(model, StageLayers(i, 1, False, False)) for i in (1, 2))
    routed = 6 + 3 + 3 * (48 + 48) + 3 * 4 * 18 + 4 * 18
    assert with_experts - dense == 4 * (routed - 4 * 80) + 3 * 8
    both = StageLayers(1, 2, False, False)
    assert saved_bytes_per_token(model, both) == dense + with_experts


@pytest.mark.parametrize("config", NEW_FAMILIES, ids=lambda config: config["model_type"])
def test_stages_of_unlike_blocks_sum_to_the_model(config):
    model = model_from_config(config)
    stages = stage_layers(split_layers(model.num_layers, 3))
    tied = model.num_head_parameters if model.has_tied_embeddings else 0
    assert sum(num_stage_parameters(model, stage) for stage in stages) == model.num_parameters + tied
    whole = stage_layers((model.num_layers,))[0]
    experts = sum(num_stage_expert_parameters(model, stage) for stage in stages)
    chosen = (
        experts // max(1, model.num_experts) * (model.experts.num_experts_per_token if model.experts else 0)
    )
    assert model.num_parameters - experts + chosen == model.num_active_parameters
    for counted in (saved_bytes_per_token, pending_bytes_per_token, pending_gradient_bytes_per_token):
        assert sum(counted(model, stage, "float32") for stage in stages) == counted(model, whole, "float32")


def test_recompute_keeps_the_input_only():
    model = model_from_config(LLAMA)
    assert saved_bytes_per_token(model, MIDDLE, recompute="full") == boundary_bytes_per_token(model) == 48 * 4
    assert saved_bytes_per_token(model, FIRST, recompute="full") == 8


def test_formats_scale_the_bytes():
    model = model_from_config(LLAMA)
    assert 2 * saved_bytes_per_token(model, MIDDLE, "bfloat16") == saved_bytes_per_token(model, MIDDLE)
    assert len({tensor.name for tensor in block_saved(model)}) == len(block_saved(model))


@pytest.mark.parametrize("is_tied", [False, True])
def test_stage_parameters_sum_to_the_model_and_a_tied_table_is_on_both_ends(is_tied):
    model = ModelSpec.decoder(5, 64, 4, has_tied_embeddings=is_tied)
    stages = stage_layers(split_layers(5, 3))
    total = sum(num_stage_parameters(model, stage) for stage in stages)
    assert total == model.num_parameters + (model.num_head_parameters if is_tied else 0)
    assert num_stage_parameters(model, stage_layers((5,))[0]) == model.num_parameters
