"""Encoder-decoders as models: their halves, parameters, work and configurations, and what they are refused with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.specs.config.export import config_from_model
from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec

PLAIN = ModelSpec.decoder(4, 16, 4, num_kv_heads=2, vocabulary_size=32, intermediate_size=24)
MODEL = PLAIN.changed(num_encoder_layers=1)
CROSS = 2 * 16 * 16 + 2 * 16 * 8 + 16  # queries, results; keys, values; a norm


def test_a_decoder_alone_is_as_it_was() -> None:
    assert PLAIN.changed(num_encoder_layers=0) == PLAIN
    assert (
        PLAIN.digest == ModelSpec.of_dimensions("other", "llama", **PLAIN.dimensions()).digest != MODEL.digest
    )


def test_its_parameters_are_those_of_both_halves() -> None:
    assert [block.half for block in MODEL.layers] == ["encoder", *["decoder"] * 3]
    assert MODEL.num_parameters == PLAIN.num_parameters + 3 * CROSS + 16 + 32 * 16
    tied = replace(MODEL, has_tied_embeddings=True)
    assert tied.num_parameters == MODEL.num_parameters - 2 * 32 * 16
    assert sum(each.num_elements for each in MODEL.parameters()) == MODEL.num_parameters


def test_a_token_goes_through_one_half() -> None:
    """Of 8 tokens four go through each; every block but an encoder's sees 10 pairs of its own, cross attention 16."""
    matrices = PLAIN.num_matmul_parameters + 3 * (CROSS - 16)
    pairs = 16 + 3 * (10 + 16)
    assert MODEL.train_flops_per_token(8) == pytest.approx(6 * matrices / 2 + 6 * (16 + 16) * pairs / 8)


def test_plan_files_and_configurations_say_it() -> None:
    assert ModelSpec.from_dict(MODEL.to_dict()) == MODEL
    config = {**config_from_model(PLAIN), "num_encoder_layers": 1}
    assert model_from_config(config).blocks == MODEL.blocks
    with pytest.raises(SpecError, match="cannot say num_encoder_layers = 1"):
        config_from_model(MODEL)
    with pytest.raises(SpecError, match="num_encoder_layers beside"):
        model_from_config({"model_type": "t5", "is_encoder_decoder": True})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_encoder_layers": 4}, "num_encoder_layers is 4 of 4"),
        ({"has_ladder_residual": True}, "with a ladder residual"),
        ({"lora_rank": 2, "lora_targets": ("qkv",)}, "with frozen parameters"),
        ({"architecture": "gpt2", "num_kv_heads": 4}, "with learned positions"),
        ({"sliding_window": 4, "sliding_layers": (2,)}, "with a sliding window"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        MODEL.changed(**changes)


def test_the_halves_are_in_order() -> None:
    (encoder, _), (decoder, _) = MODEL.blocks
    for blocks in (
        ((decoder, 1), (encoder, 1)),
        ((encoder, 2),),
        ((replace(encoder, half=""), 1), (decoder, 1)),
    ):
        with pytest.raises(SpecError, match="the encoder's blocks, and the decoder's behind them"):
            replace(MODEL, blocks=blocks)
