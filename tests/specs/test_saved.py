"""Kept bytes per token against what the executed decoder keeps alive."""

import pytest

from meshwright.specs import (
    ModelSpec,
    StageLayers,
    boundary_bytes_per_token,
    model_from_config,
    num_stage_parameters,
    pending_bytes_per_token,
    saved_bytes_per_token,
    split_layers,
    stage_layers,
)
from meshwright.specs.saved import block_saved
from tests.specs.configs import GPT2, LLAMA, QWEN2, QWEN3

CONFIGS = {config["model_type"]: config for config in (LLAMA, GPT2, QWEN2, QWEN3)}
FIRST, MIDDLE, LAST = (
    StageLayers(0, 1, True, False),
    StageLayers(1, 1, False, False),
    StageLayers(2, 1, False, True),
)
NUM_TOKENS = 2 * 32


def measured_bytes(model, layers):
    """(kept from F to B, kept from I to W): live storages, parameters left out, per microbatch."""
    torch = pytest.importorskip("torch")
    from meshwright.executor.models.decoder import build_stage
    from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
    from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering

    blocks = range(layers.first_block, layers.first_block + layers.num_blocks)
    stage = build_stage(model, blocks, layers.has_embedding, layers.has_head)
    tokens = torch.randint(model.vocabulary_size, (2, 32))
    x = tokens if layers.has_embedding else torch.randn(2, 32, model.hidden_size, requires_grad=True)
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
def test_counts_are_those_of_the_executed_decoder(architecture, layers):
    model = model_from_config(CONFIGS[architecture])
    saved, pending = measured_bytes(model, layers)
    ours = (
        saved_bytes_per_token(model, layers) * NUM_TOKENS,
        pending_bytes_per_token(model, layers) * NUM_TOKENS,
    )
    if architecture == "gpt2" and layers.has_embedding:  # positions are counted once for each sequence
        assert 0 <= ours[0] - saved <= 8 * NUM_TOKENS
        assert 0 <= ours[1] - pending <= (8 + 4 * model.hidden_size) * NUM_TOKENS
        return
    assert ours[1] == pending
    assert ours[0] == pytest.approx(saved, abs=16)  # a few scalars of the loss


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
