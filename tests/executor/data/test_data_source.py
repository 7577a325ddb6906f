"""What a training reads: bytes or shards, made once, refused where model and tokenizer do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.packed_reference import document_losses
from tests.executor.token_data import SENTENCES, write_texts, write_tokenizer

from meshwright.executor.data import shard_writer
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.data_source import has_documents, opened, prepared_source
from meshwright.executor.data.packing import PackedSequences, SampleCount, documents_of
from meshwright.executor.data.token_shard import HEADER, TokenShards
from meshwright.executor.models.decoder import build_model
from meshwright.executor.training.held_out import held_out_loss
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.source import Source

MODEL = ModelSpec.decoder(1, 8, 1, vocabulary_size=300, max_sequence_length=16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache that is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path: Path) -> str:
    return str(write_texts(tmp_path / "text"))


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(write_tokenizer(tmp_path / "small"))


def _training(data: str, tokenizer: str | None = None, **fields: Any) -> TrainingConfig:
    return TrainingConfig(MODEL, (1,), 16, source=Source(data, tokenizer, **fields))


def data_of(training: TrainingConfig) -> str:
    """Where what it reads lies."""
    return str(training.source.data)


def test_text_without_a_tokenizer_stays_bytes(text: str, cache: Path) -> None:
    source = Source(text)
    assert prepared_source(source) is source and not has_documents(source)
    found = opened(source)
    assert isinstance(found, Corpus) and found.digest == Corpus.folder(text).digest
    assert not cache.exists()


def test_a_tokenizer_makes_shards_once_and_for_all(
    text: str, tokenizer: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = _training(text, tokenizer=tokenizer).prepared()
    assert data_of(prepared).startswith(str(cache)) and prepared.has_documents
    assert prepared.source.tokenizer is None
    monkeypatch.setattr(shard_writer, "_write", lambda *_: pytest.fail("made twice"))
    assert _training(text, tokenizer=tokenizer).prepared() == prepared
    assert (
        prepared.prepared()
        == prepared
        == TrainingConfig.from_dict(json.loads(json.dumps(prepared.to_dict())))
    )
    found = prepared.batches(4)
    assert isinstance(found, PackedSequences) and found.count == SampleCount(4)
    tokens, targets = found.batch(0, 0, range(4), 16)
    assert documents_of(targets) is not None and int(tokens.max()) > 255


def test_jsonl_is_documents_even_as_bytes(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps({"body": text * 3}) for text in SENTENCES))
    prepared = _training(str(path), text_field="body").prepared(tmp_path / "shards")
    assert data_of(prepared) == str(tmp_path / "shards") and not cache.exists()
    shards = TokenShards.open(data_of(prepared))
    assert (shards.vocabulary_size, shards.end_id, shards.tokenizer["name"]) == (256, 0, "bytes")
    found = bytes(shards.train.read(0, shards.train.num_tokens).tolist()).split(b"\0")[:-1]
    assert set(found) <= {(text * 3).encode() for text in SENTENCES} and len(found) == 3


def test_where_the_samples_begin(text: str, tokenizer: str) -> None:
    begun = replace(_training(text, tokenizer=tokenizer), first_step=7)
    found, moved = begun.batches(4), replace(begun, first_sample=30).batches(5)
    assert isinstance(found, PackedSequences) and isinstance(moved, PackedSequences)
    assert (found.count.first_of(7), found.count.first_of(8)) == (28, 32)
    assert (moved.count.first_of(7), moved.count.first_of(8)) == (30, 35)


def test_a_vocabulary_that_is_too_small(text: str, tokenizer: str) -> None:
    small = ModelSpec.decoder(1, 8, 1, vocabulary_size=270)
    with pytest.raises(ExecutionError, match="vocabulary of 270, the tokenizer small has 280"):
        replace(_training(text, tokenizer=tokenizer), model=small).prepared()
    with pytest.raises(ExecutionError, match="vocabulary of 100, text read as bytes has 256"):
        replace(_training(text), model=ModelSpec.decoder(1, 8, 1, vocabulary_size=100)).prepared()
    assert replace(_training("random"), model=small).prepared().is_random


def test_shards_and_another_tokenizer(tmp_path: Path, text: str, tokenizer: str) -> None:
    shards = data_of(_training(text, tokenizer=tokenizer).prepared())
    assert _training(shards, tokenizer=tokenizer).prepared().has_documents
    other = write_tokenizer(tmp_path / "other", {"eos_token": "a"})
    with pytest.raises(SpecError, match="made with the tokenizer small, not with other"):
        _training(shards, tokenizer=str(other)).prepared()


def test_damaged_shards_are_found_before_anything_starts(text: str, tokenizer: str) -> None:
    data = data_of(_training(text, tokenizer=tokenizer).prepared())
    (Path(data) / HEADER).write_text("{")
    with pytest.raises(ExecutionError, match="is not JSON"):
        _training(data).prepared()


def test_masks_can_be_left_out_and_an_encoder_needs_it(text: str, tokenizer: str) -> None:
    open_text = _training(text, tokenizer=tokenizer, document_mask=False).prepared()
    assert not open_text.has_documents
    assert (open_text.batches(2).batch(0, 0, [0, 1], 16)[1] >= 0).all()
    both = TrainingConfig(
        ModelSpec.decoder(2, 8, 1, vocabulary_size=300).changed(num_encoder_layers=1),
        (2,),
        16,
        source=Source(text, tokenizer),
    )
    with pytest.raises(ExecutionError, match="document_mask=False"):
        both.prepared()
    assert (
        replace(both, source=Source(text, tokenizer, document_mask=False)).prepared().source
        == open_text.source
    )


def test_held_out_loss_is_the_mean_over_documents_alone(text: str, tokenizer: str) -> None:
    held_out = opened(Source(text, tokenizer))
    assert isinstance(held_out, PackedSequences)
    model = build_model(MODEL, dtype=torch.float64)
    tokens, targets = next(held_out.held_out_batches(3, 8, 3))
    expected = document_losses(model, tokens, targets).detach() / (targets >= 0).sum()
    assert held_out_loss(model, held_out, 3, 8) == pytest.approx(float(expected), abs=1e-10)


def test_a_changed_token_is_found_before_anything_starts(text: str, tokenizer: str) -> None:
    data = data_of(_training(text, tokenizer=tokenizer).prepared())
    path = max(Path(data).iterdir(), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExecutionError, match=rf"{path.name} has SHA-256"):
        _training(data).prepared()
    with pytest.raises(ExecutionError, match=rf"{path.name} has SHA-256"):
        _training(text, tokenizer=tokenizer).prepared()  # the cache's
