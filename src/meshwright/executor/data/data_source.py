"""What a training reads: bytes of text files as they are, or documents that have been tokenised into shards.

Text files without a tokenizer are bytes, read whole by every process. With a tokenizer, and for JSONL, shards are made once,
by whoever prepares the job, before its processes start; all of these then map the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from meshwright.executor.data.corpus import Corpus, check_length
from meshwright.executor.data.packing import PackedSequences, SampleCount, num_sequences
from meshwright.executor.data.shard_writer import make_shards
from meshwright.executor.data.text_source import TextSource
from meshwright.executor.data.token_shard import TokenShards, has_shards
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES, tokenization
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.training.source import Source

ONE_BY_ONE = SampleCount(per_step=1)


def is_sharded(source: Source) -> bool:
    """Are there shards to open already?"""
    return source.data is not None and has_shards(source.data)


def has_documents(source: Source) -> bool:
    """Are documents masked? True once there are shards."""
    return source.document_mask and is_sharded(source)


def prepared_source(
    source: Source, folder: str | Path | None = None, progress: Callable[[float], None] | None = None
) -> Source:
    """The same with shards to open, made now where text has to be tokenised; bytes stay as they are. Shards that were there
    are read once and compared with their checksums.

    Args:
        folder: where shards shall be; None: the user's cache. progress: as of `make_shards`.

    Raises SpecError as `make_shards` and for a tokenizer that the shards were not made with; ExecutionError for damaged
    shards.
    """
    if source.data is not None and has_shards(source.data):
        _check_tokenizer(source, shards := TokenShards.open(source.data))
        shards.verify()
        return source
    if source.tokenizer is None and (source.data is None or not _text(source).has_jsonl):
        return source
    shards = make_shards(_text(source), tokenization(source.tokenizer), folder, progress)
    return replace(source, data=str(shards.folder.absolute()), tokenizer=None, text_field=Source.text_field)


def check_source(source: Source, vocabulary_size: int, sequence_length: int) -> None:
    """Can a model of `vocabulary_size` tokens read it, and is there a sequence to train on, and to hold out where that is
    asked for? For a prepared source. Raises ExecutionError.
    """
    needed, what = NUM_BYTE_VALUES, "text read as bytes"
    if source.data is not None and has_shards(source.data):
        shards = TokenShards.open(source.data)
        needed, what = shards.vocabulary_size, f"the tokenizer {shards.tokenizer['name']}"
        for split in (shards.train, *((shards.held_out,) if source.evaluate_every else ())):
            num_sequences(split, sequence_length)
    if vocabulary_size < needed:
        raise ExecutionError(
            f"the model has a vocabulary of {vocabulary_size}, {what} has {needed} tokens",
            allowed=f"a model with a vocabulary of {needed} or more",
            next="set the model's vocabulary_size, or take another tokenizer",
        )


def check_bytes(source: Source, sequence_length: int) -> None:
    """Text that is read as bytes is read here once, so that what is wrong with it is said before processes start. Nothing
    for shards. Raises ExecutionError.
    """
    if not is_sharded(source):
        corpus = corpus_of(source)
        for part, name in ((corpus.train, ""), (corpus.held_out, "held-out ")):
            check_length(part, sequence_length, name)


def opened(source: Source, count: SampleCount = ONE_BY_ONE) -> Corpus | PackedSequences:
    """The batches of a training, and its held-out ones. Raises SpecError, ExecutionError as `prepared_source`.

    Args:
        count: which samples of shards a step has; not needed for what is held out.
    """
    ready = source if is_sharded(source) else prepared_source(source)
    if ready.data is not None and has_shards(ready.data):
        return PackedSequences(TokenShards.open(ready.data), count, source.document_mask)
    return corpus_of(ready)


def source_digest(source: Source) -> str:
    """What tells these tokens and their order from others, of a prepared source; bytes are read for it."""
    return opened(source).digest


def corpus_of(source: Source) -> Corpus:
    """The standard library's sources, or a folder or file of text, as bytes. Raises ExecutionError."""
    return Corpus.standard_library() if source.data is None else Corpus.folder(source.data)


def _text(source: Source) -> TextSource:
    if source.data is None:
        return TextSource.standard_library()
    return TextSource.open(source.data, source.text_field)


def _check_tokenizer(source: Source, shards: TokenShards) -> None:
    if source.tokenizer is None:
        return
    asked = tokenization(source.tokenizer)
    if asked.digest != shards.tokenizer["digest"]:
        raise SpecError(
            f"the shards in {source.data} were made with the tokenizer {shards.tokenizer['name']}, not with {asked.name}",
            next="leave the tokenizer out, or give the text instead of the shards",
        )
