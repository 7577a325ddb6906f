"""Stages of an encoder-decoder: the encoder sees its whole half, the decoder only what stands before, and the encoder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from meshwright.executor.models.encoder_decoder import EncoderDecoderStage, build_encoder_decoder_stage
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(4, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=8)
TOKENS_BS = torch.arange(8)[None]


def stages(model: ModelSpec = MODEL) -> list[EncoderDecoderStage]:
    """Two layers of encoder, two of decoder, in three stages."""
    cuts = ((range(2), True, False), (range(2, 3), False, False), (range(3, 4), False, True))
    return [build_encoder_decoder_stage(model, *cut, 2, torch.float64) for cut in cuts]


def logits(tokens_BS: Tensor) -> Tensor:
    encoder, first, last = stages()
    encoded, given = encoder.with_edges(tokens_BS, None, (), tokens_BS)
    assert len(given) == 1 and torch.equal(given[0], encoded)
    x, _ = first.with_edges(encoded, None, (), tokens_BS)
    return last.with_edges(x, None, given, tokens_BS)[0].detach()


def test_who_sees_whom() -> None:
    """Logits [1, 4, V] of tokens 4 to 7; a change of any source token is seen by all, of a target by later ones only."""
    base = logits(TOKENS_BS)
    assert base.shape == (1, 4, 32)
    for place in range(8):
        tokens_BS = TOKENS_BS.clone()
        tokens_BS[0, place] = 31
        changed = (logits(tokens_BS) != base).any(-1)[0].tolist()
        assert changed == [place < 4 or target >= place - 4 for target in range(4)]


def test_a_tied_table_has_one_name_at_three_places() -> None:
    tied = stages(replace(MODEL, has_tied_embeddings=True))
    tables = [stage.global_parameters()["embedding.weight"] for stage in tied]
    assert all(torch.equal(table, tables[0]) for table in tables)
    apart = [set(stage.global_parameters()) for stage in stages()]
    assert (
        "embedding.weight" in apart[0] and "target_embedding.weight" in apart[1] and "head.weight" in apart[2]
    )


def test_learned_positions_and_latent_attention_are_refused() -> None:
    with pytest.raises(ExecutionError, match="learned positions"):
        stages(MODEL.changed(architecture="gpt2", num_kv_heads=2))
    latent = {"num_kv_heads": MODEL.num_heads, "key_value_rank": 4, "rotary_head_dim": 2, "value_head_dim": 4}
    with pytest.raises(ExecutionError, match="latent attention"):
        stages(MODEL.changed(architecture="deepseek_v2", **latent))
