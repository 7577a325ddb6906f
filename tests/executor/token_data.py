"""Small text, a small tokenizer and small shards for the tests of data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from meshwright.executor.data import shard_writer
from meshwright.executor.data.text_source import TextPiece, TextSource
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.data.tokenization import EncodedPiece

END = "<|endoftext|>"
SENTENCES = ("the cat sat on the mat\n", "a dog ate the cat\n", "où est le chat?\n", "on the mat sat a dog\n")


def write_tokenizer(folder: Path, settings: object = None) -> Path:
    """A byte-level BPE tokenizer.json with an end token, trained on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder / "tokenizer.json"


def write_texts(folder: Path, num_files: int = 40) -> Path:
    """Files of one to four sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_files):
        chosen = [SENTENCES[(number + i) % len(SENTENCES)] for i in range(1 + number % 4)]
        (folder / f"{number:03}.txt").write_text(f"{number} " + "".join(chosen), encoding="utf-8")
    return folder


class NumberTokenization:
    """Text is numbers with blanks between them, and these are the tokens."""

    name, digest = "numbers", "numbers"

    def __init__(self, vocabulary_size: int = 100, end_id: int = 0) -> None:
        self.vocabulary_size, self.end_id = vocabulary_size, end_id

    def encode(self, pieces: Sequence[TextPiece]) -> list[EncodedPiece]:
        return [EncodedPiece(np.array(piece.data.split(), dtype=np.uint32)) for piece in pieces]


def write_documents(path: Path, documents: Sequence[Sequence[int]]) -> TextSource:
    """A JSONL file of documents for `NumberTokenization`."""
    lines = [json.dumps({"text": " ".join(map(str, document))}) for document in documents]
    path.write_text("\n".join(lines) + "\n")
    return TextSource.open(path)


def shards_of(folder: Path, documents: Sequence[Sequence[int]], vocabulary_size: int = 100) -> TokenShards:
    """Shards of these documents; their split is by hash."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_documents(folder / "documents.jsonl", documents)
    return shard_writer.make_shards(source, NumberTokenization(vocabulary_size), folder / "shards")
