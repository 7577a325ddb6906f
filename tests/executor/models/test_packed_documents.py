"""A model of packed documents equals every document run by itself through plain modules: logits, loss and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor

from meshwright.executor.data.packing import documents_of
from meshwright.executor.models.decoder import build_model, build_stage
from meshwright.executor.models.skip_decoder import build_skip_stage
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.lowering.transfer.stage_edge import LayerEdge
from meshwright.specs.model.model import ModelSpec
from tests.executor.packed_reference import document_losses

TOLERANCE = 1e-10
LLAMA = ModelSpec.decoder(3, 24, 4, num_kv_heads=2, intermediate_size=40, vocabulary_size=50)
MODELS = {
    "llama": LLAMA,
    "gpt2": LLAMA.changed(architecture="gpt2", num_kv_heads=4, has_tied_embeddings=True),
    "qwen3": LLAMA.changed(architecture="qwen3", has_query_key_norm=True),
    "mixtral": LLAMA.changed(
        architecture="mixtral", num_experts=4, num_experts_per_token=2, expert_intermediate_size=20
    ),
    "deepseek": LLAMA.changed(
        architecture="deepseek_v2", num_kv_heads=4, key_value_rank=10, rotary_head_dim=2, value_head_dim=8
    ),
    "mistral": LLAMA.changed(architecture="mistral", sliding_window=9, sliding_layers=(0, 2)),
}


def _batch() -> tuple[Tensor, Tensor]:
    """Three sequences of 100 tokens: documents short and long, one token long, and one that fills a sequence."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.randint(0, 50, (3, 101), generator=generator)
    tokens, targets = rows[:, :-1].clone(), rows[:, 1:].clone()
    for row, ends in ((0, [4, 5, 66, 99]), (1, [80])):
        targets[row, ends] = -100
    return tokens, targets


@pytest.mark.parametrize("name", MODELS)
def test_packed_documents_equal_each_by_itself(name: str) -> None:
    model = MODELS[name]
    tokens, targets = _batch()
    stage = build_model(model, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(model).double()
        plain.load_state_dict(stage.state_dict())
        num_targets = int((targets >= 0).sum())
        expected = document_losses(plain, tokens, targets) / num_targets
    finally:
        torch.set_default_dtype(torch.float32)
    found = token_cross_entropy(stage(tokens, documents_BS=documents_of(targets)), targets, 1 / num_targets)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=TOLERANCE)
    unmasked = token_cross_entropy(stage(tokens), targets, 1 / num_targets)
    assert abs(float(unmasked.detach()) - float(expected.detach())) > 1e-6
    torch.autograd.backward([expected, found])
    for parameter_name, parameter in plain.named_parameters():
        torch.testing.assert_close(
            stage.get_parameter(parameter_name).grad, parameter.grad, rtol=0, atol=TOLERANCE
        )


def test_stages_are_given_the_documents_one_by_one() -> None:
    model = MODELS["llama"]
    tokens, targets = _batch()
    documents = documents_of(targets)
    whole = build_model(model, dtype=torch.float64)(tokens, documents_BS=documents)
    first = build_stage(model, range(1), True, False, dtype=torch.float64)
    second = build_stage(model, range(1, 3), False, True, dtype=torch.float64)
    cut = second(first(tokens, documents_BS=documents), documents_BS=documents)
    torch.testing.assert_close(cut, whole, rtol=0, atol=TOLERANCE)


def test_long_skips_stay_within_a_document() -> None:
    stage = build_skip_stage(MODELS["llama"], range(3), True, True, (LayerEdge(0, 2),), dtype=torch.float64)
    tokens, targets = _batch()
    documents = documents_of(targets)
    assert documents is not None
    packed, _ = stage.with_edges(tokens, None, (), documents)
    alone, _ = stage.with_edges(tokens[1:2, 81:], None, ())
    torch.testing.assert_close(packed[1:2, 81:], alone, rtol=0, atol=TOLERANCE)


def test_16_bit_numbers_take_the_other_path() -> None:
    tokens, targets = _batch()
    documents = documents_of(targets)
    wide = build_model(MODELS["llama"])
    narrow = build_model(MODELS["llama"]).to(torch.bfloat16)
    expected, found = wide(tokens, documents_BS=documents), narrow(tokens, documents_BS=documents).float()
    assert F.cosine_similarity(found.flatten(), expected.flatten(), 0) > 0.999
    unmasked = wide(tokens)
    assert (found - expected).abs().mean() < 0.5 * (unmasked - expected).abs().mean()
