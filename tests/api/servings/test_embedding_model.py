"""A folder of sentence-transformers with a decoder: its vectors are those of transformers, however prompts are cut."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.executor.serving.paged_case import SIZES, their_model
from tests.serving.rest import wait_for_rest
from tests.serving.stored.test_pooling import LAST, write_pooling

from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.opened_model import OpenedModel
from meshwright.serving.api.body.pooling import EmbeddingBody
from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.pooling.embedding import embed
from meshwright.serving.policy.limits import Limits
from meshwright.specs.error import SpecError

SMALL = {"dtype": "float32", "num_blocks": 64, "num_threads": 1, "device": "cpu"}
TEXTS = [
    "Once upon a time there was a",
    "Once upon a time",
    "x",
    "Once upon a time there was another one, " * 3,
]


def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    sizes = {**SIZES, "vocab_size": 256, "tie_word_embeddings": True}
    theirs = their_model({"model_type": "qwen3", **sizes, "head_dim": 16}, tmp_path / "model")
    theirs.model.save_pretrained(
        tmp_path / "model"
    )  # as such folders are: without a head, names without a prefix
    write_pooling(tmp_path / "model", LAST, "Transformer", "Pooling", "Normalize")
    limits = Limits(max_batch_tokens=24, max_sequences=8)
    with OpenedModel(tmp_path / "model", EngineChoice(**SMALL), limits) as opened:
        model = ModelService(
            "tiny", opened.service, opened.text, opened.max_model_tokens, opened.vocabulary_size, opened.check_grammar,
            observer=ServerMetrics("tiny", 100), pooling=opened.pooling,
        )  # fmt: skip
        answers = [asyncio.run(embed(model, EmbeddingBody(model="tiny", input=TEXTS))) for _ in range(2)]
        state = wait_for_rest(opened.service)
    assert (state.num_open, state.num_held_blocks) == (0, 0)
    for answer in answers:  # the second finds prompts computed
        for text, row in zip(TEXTS, answer.data, strict=True):
            with torch.no_grad():
                hidden = theirs.model(torch.tensor([list(text.encode())])).last_hidden_state[0, -1].numpy()
            assert np.allclose(row.embedding, hidden / np.linalg.norm(hidden), atol=1e-5), text


def test_engines_that_tell_no_vectors_are_refused(tmp_path: Path) -> None:
    their_model({"model_type": "llama", **SIZES, "vocab_size": 256}, tmp_path / "model")
    write_pooling(tmp_path / "model", LAST, "Transformer", "Pooling")
    with pytest.raises(SpecError, match="embeddings with --engine openvino"):
        OpenedModel(tmp_path / "model", EngineChoice(engine="openvino", num_blocks=16))
