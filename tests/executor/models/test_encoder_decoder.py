"""Stages of an encoder-decoder: the encoder sees its whole half, the decoder only what stands before, and the encoder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from meshwright.executor.models.encoder_decoder import EncoderDecoderStage, build_encoder_decoder_stage
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(4, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=8).changed(
    num_encoder_layers=2
)
TOKENS_BS = torch.arange(8)[None]


def stages(model: ModelSpec = MODEL) -> list[EncoderDecoderStage]:
    """Two layers of encoder, two of decoder, in three stages."""
    cuts = ((range(2), True, False), (range(2, 3), False, False), (range(3, 4), False, True))
    return [build_encoder_decoder_stage(model, *cut, torch.float64) for cut in cuts]


def logits(tokens_BS: Tensor) -> Tensor:
    """Through all stages; what a stage of the decoder gives has what the encoder made beside it."""
    encoder, first, last = stages()
    encoded = encoder.of_windows(tokens_BS, None, tokens_BS)
    x = first.of_windows(encoded, None, tokens_BS)
    assert torch.equal(x.chunk(2, -1)[1], encoded)
    return last.of_windows(x, None, tokens_BS).detach()


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


def test_the_whole_model_is_one_stage() -> None:
    whole = build_encoder_decoder_stage(MODEL, range(4), True, True, torch.float64)
    assert torch.equal(whole.of_windows(TOKENS_BS, None, TOKENS_BS), logits(TOKENS_BS))
