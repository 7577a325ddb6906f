"""Flat dimensions become blocks and come back; a digest follows what is computed, and stays what it was."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.specs import ModelSpec, SpecError, load_model, model_presets
from meshwright.specs.model.dimension import ADDED_DIMENSIONS, flat_digest


def test_digest_ignores_names_only():
    model = ModelSpec.decoder(4, 64, 4)
    assert model.digest == dataclasses.replace(model, name="other", source="x").digest
    for change in ({"num_layers": 5}, {"rope_theta": 1e6}, {"has_tied_embeddings": True}):
        assert model.changed(**change).digest != model.digest


def test_a_dimension_that_came_later_does_not_change_the_digest_of_what_lacks_it():
    model = ModelSpec.decoder(4, 64, 4)
    assert model.digest == "8eff451a0167a015"  # as in plan files of all schemas
    old = {key: value for key, value in model.dimensions().items() if key not in ADDED_DIMENSIONS}
    assert ModelSpec.of_dimensions("decoder", "llama", **old).digest == model.digest
    assert model.changed(sliding_window=4, sliding_layers=(0,)).digest != model.digest


# What these models had before they were lists of blocks: parameters, those of one token, FLOPs of one at 4,096 tokens.
@pytest.mark.parametrize(
    ("name", "num_parameters", "num_active", "flops", "digest"),
    [
        (
            "deepseek-v2-lite",
            15706484224,
            2661150208,
            16406959104.0,
            "000c5dbd7a2798c6",
        ),  # latent attention, a dense block first
        (
            "gemma-2-9b",
            9241705984,
            9241705984,
            59675492352.0,
            "cb3cc08bd6d6504a",
        ),  # windows in every second block, caps, tied
        (
            "gpt-oss-20b",
            20914757184,
            4187440704,
            22925435904.0,
            "f7ad8f44792b9f90",
        ),  # windows, sinks, experts with biases
        (
            "qwen3-0.6b",
            596049920,
            596049920,
            4985536512.0,
            "189f5e757c0cb9a4",
        ),  # norms of queries and keys, tied
        ("gpt2", 124439808, 124439808, 967739904.0, "793e8591a59059b4"),  # learned positions
        (
            "mixtral-8x7b",
            46702792704,
            12879925248,
            79713533952.0,
            "70bcbffe5fa6f687",
        ),  # experts in every block
    ],
)
def test_counts_are_those_of_flat_models(name, num_parameters, num_active, flops, digest):
    model = load_model(name)
    assert (model.num_parameters, model.num_active_parameters) == (num_parameters, num_active)
    assert (model.train_flops_per_token(4096), model.digest) == (flops, digest)


@pytest.mark.parametrize("name", model_presets())
def test_dimensions_of_every_preset_are_the_preset(name):
    model = load_model(name)
    again = ModelSpec.of_dimensions(model.name, model.architecture, model.source, **model.dimensions())
    assert again == model and again.digest == model.digest
    assert flat_digest(name, model.dimensions(), model.architecture) == model.digest


LAYERS = st.sets(st.integers(0, 6), max_size=6).map(lambda found: tuple(sorted(found)))


@settings(max_examples=50, deadline=None)
@given(
    window=st.sampled_from([2, 7]),
    sliding=LAYERS,
    dense=LAYERS,
    is_latent=st.booleans(),
    has_bias=st.booleans(),
)
def test_any_dimensions_come_back(window, sliding, dense, is_latent, has_bias):
    latent = {"key_value_rank": 6, "rotary_head_dim": 4, "value_head_dim": 5, "query_rank": 3 * has_bias}
    given_ = {
        "num_layers": 7, "hidden_size": 24, "num_heads": 2, "num_kv_heads": 2, "head_dim": 12, "intermediate_size": 30,
        "vocabulary_size": 40, "max_sequence_length": 9, "num_experts": 4, "num_experts_per_token": 2,
        "expert_intermediate_size": 11, "dense_layers": dense, "has_mlp_bias": has_bias, "attention_logit_cap": 3,
        "sliding_layers": sliding, "sliding_window": window if sliding else 0, **(latent if is_latent else {}),
    }  # fmt: skip
    model = ModelSpec.of_dimensions("any", "deepseek_v3", **given_)
    said = model.dimensions()
    assert {key: said[key] for key in given_ if key != "intermediate_size"} == {
        key: value for key, value in given_.items() if key != "intermediate_size"
    }
    assert said["intermediate_size"] == (30 if dense else 11)  # nothing has a width that no block has
    assert [bool(block.experts) for block in model.layers] == [i not in dense for i in range(7)]
    assert [block.attention.window for block in model.layers] == [window * (i in sliding) for i in range(7)]
    assert ModelSpec.from_dict(model.to_dict()) == model


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_experst": 4}, "num_experts"),
        ({"num_layers": "4"}, "whole number"),
        ({"has_qkv_bias": 1}, "true or false"),
        ({"num_experts": 4}, "num_experts_per_token is 0"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_expert_groups": 2}, "num_expert_groups is 2 without router_scores"),
        ({"router_scores": "softmax"}, "without router_scores, or without experts"),
        (
            {
                "num_experts": 4,
                "num_experts_per_token": 2,
                "expert_intermediate_size": 8,
                "router_scores": "tanh",
            },
            "scores='tanh'",
        ),
    ],
)
def test_dimensions_that_are_none_are_refused(change, said):
    given_ = {**ModelSpec.decoder(4, 64, 4).dimensions(), **change}
    with pytest.raises(SpecError, match=re.escape(said)):
        ModelSpec.of_dimensions("any", "llama", **given_)
    with pytest.raises(SpecError, match="'hidden_size' is missing"):
        ModelSpec.of_dimensions("any", "llama", num_layers=4)


def test_blocks_that_differ_in_more_than_a_window_have_no_flat_form():
    model = ModelSpec.decoder(4, 64, 4)
    (block, _), *_ = model.blocks
    wide = dataclasses.replace(block.attention, num_kv_heads=2)
    mixed = dataclasses.replace(model, blocks=((block, 3), (dataclasses.replace(block, attention=wide), 1)))
    with pytest.raises(SpecError, match=r"model.layers\[number\]"):
        mixed.dimensions()
    assert mixed.num_parameters == model.num_parameters - 2 * 2 * 16 * 64
    assert ModelSpec.from_dict(mixed.to_dict()) == mixed
    assert mixed.digest == dataclasses.replace(mixed, name="other").digest != model.digest
