"""What a training reads: bytes of text files as they are, or documents that have been tokenised into shards.

Text files without a tokenizer are bytes, read whole by every process. With a tokenizer, and for JSONL, shards are made once,
by whoever prepares the job, before its processes start; all of these then map the same files. What is held out is a share
of the documents, or `evaluate_data`, which is then read in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from meshwright.executor.data.chat_tokenization import ChatTokenization, is_chat
from meshwright.executor.data.corpus import Corpus, check_length
from meshwright.executor.data.packing import PackedSequences, SampleCount
from meshwright.executor.data.sequence_span import WholeDocuments, spans_of
from meshwright.executor.data.shard_writer import make_shards, told_counts
from meshwright.executor.data.text_source import TextSource
from meshwright.executor.data.token_shard import TokenShards, has_shards
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES, Tokenization, tokenization
from meshwright.executor.data.whole_sequence import WholeSequences
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.training.source import PathLike, Source

ONE_BY_ONE = SampleCount(per_step=1)


class SourcePart(NamedTuple):
    """What is trained on, or what is held out: the `field` of a source, and the share of its documents (`TextPiece`)."""

    field: str
    share: float

    def of(self, source: Source) -> PathLike | None:
        """Where it is; None: the standard library."""
        found: PathLike | None = getattr(source, self.field)
        return found


TRAINED, HELD_OUT = SourcePart("data", 1.0), SourcePart("evaluate_data", 0.0)


def is_sharded(source: Source) -> bool:
    """Are there shards to open already?"""
    return source.data is not None and has_shards(source.data)


def has_documents(source: Source) -> bool:
    """Are documents masked? True once there are shards."""
    return source.document_mask and is_sharded(source)


def masks_documents(source: Source) -> bool:
    """Will documents be masked, once it is prepared? Not those of text that is read as bytes. Raises SpecError."""
    return source.document_mask and (
        is_sharded(source) or source.tokenizer is not None or _needs_shards(source)
    )


def prepared_source(
    source: Source, folder: str | Path | None = None, progress: Callable[[float], None] | None = None
) -> Source:
    """The same with shards to open, made now where text has to be tokenised; bytes stay as they are. Shards that were there
    are read once and compared with their checksums.

    Args:
        folder: where shards shall be; None: the user's cache. progress: as of `make_shards`.

    Raises SpecError as `make_shards` and `ChatTokenization`, for a tokenizer or template that the shards were not made with,
    and for one that nothing needs; ExecutionError for damaged shards.
    """
    data = _prepared(source, TRAINED, folder, progress)
    held_out = source.evaluate_data
    if data is not None and held_out is not None:
        kept = None if folder is None else Path(folder).with_name(f"{Path(folder).name}-held-out")
        held_out = _prepared(source, HELD_OUT, kept, progress)
    if data is None:
        _check_template(source, is_of_chats=False)
        return source
    ready = replace(
        source,
        data=data,
        evaluate_data=held_out,
        tokenizer=None,
        chat_template=None,
        text_field=Source.text_field,
    )
    _check_template(source, is_of_chats=has_answers(_shards(ready)))
    return ready


def _prepared(
    source: Source, part: SourcePart, folder: str | Path | None, progress: Callable[[float], None] | None
) -> str | None:
    """The folder of the shards of one part of a source; None where it is read as bytes."""
    data = part.of(source)
    if data is not None and has_shards(data):
        _check_tokenizer(source, shards := TokenShards.open(data))
        shards.verify()
        return str(data)
    text = _text(source, part)
    if is_chat(text.first_line(), source.text_field):
        shards = make_shards(text.in_lines(), _chat_tokenization(source, text.name), folder, progress)
    elif source.tokenizer is None and not _needs_shards(source):
        return None
    else:
        shards = make_shards(text, tokenization(source.tokenizer), folder, progress)
    return str(shards.folder.absolute())


def _needs_shards(source: Source) -> bool:
    """Has either part of it JSONL or shards, so that both have to be shards, or are its samples whole documents?"""
    if source.whole_sequences:
        return True
    parts = [TRAINED] if source.evaluate_data is None else [TRAINED, HELD_OUT]
    data = [part.of(source) for part in parts]
    if any(one is not None and has_shards(one) for one in data):
        return True
    return any(_text(source, part).has_jsonl for part in parts)


def _chat_tokenization(source: Source, name: str) -> ChatTokenization:
    """Raises SpecError where no tokenizer is named."""
    if source.tokenizer is None:
        raise SpecError(
            f"{name} has conversations, and no tokenizer is named",
            allowed="a tokenizer with a chat template",
            next="name its folder with --tokenizer",
        )
    return ChatTokenization(source.tokenizer, source.chat_template)


def has_answers(shards: TokenShards) -> bool:
    """Is it said of its tokens which are to be learned?"""
    return shards.train.has_answers or shards.held_out.has_answers


def told_packing(source: Source, sequence_length: int) -> tuple[str, str]:
    """How conversations are packed, and what of them is lost, in words for people: "" of a prepared source that has none,
    and where nothing is lost. Raises ExecutionError."""
    if source.whole_sequences or not is_sharded(source) or not has_answers(shards := _shards(source)):
        return "", ""
    spans = spans_of(shards.train, sequence_length)
    assert isinstance(spans, WholeDocuments), "conversations are packed whole"
    used = int(spans.lengths.sum()) / (spans.count * (sequence_length + 1))
    packed = (
        f"{shards.train.num_documents - spans.num_silenced:,} conversations packed into {spans.count:,} sequences of "
        f"{sequence_length:,} tokens, {used:.0%} full"
    )
    lost = []
    if spans.num_cut:
        lost.append(
            f"{spans.num_cut:,} conversations are longer than {sequence_length:,} tokens and lose their ends, "
            f"{spans.num_lost:,} tokens in all"
        )
    if spans.num_silenced:
        lost.append(f"{spans.num_silenced:,} of these lose all of their answers and are left out")
    if shards.left_out:
        lost.append(f"left out are {told_counts(shards.left_out)}")
    return packed, "; ".join(lost)


def check_source(source: Source, vocabulary_size: int, sequence_length: int) -> None:
    """Can a model of `vocabulary_size` tokens read it, and is there a sequence to train on, and to hold out where that is
    asked for? For a prepared source. Raises ExecutionError.
    """
    needed, what = NUM_BYTE_VALUES, "text read as bytes"
    if source.data is not None and has_shards(source.data):
        shards = _shards(source)
        needed, what = shards.vocabulary_size, f"the tokenizer {shards.tokenizer['name']}"
        if source.whole_sequences:
            whole_sequences(source, ONE_BY_ONE, sequence_length)
        for split in (shards.train, *((shards.held_out,) if source.evaluate_every else ())):
            if not source.whole_sequences:
                spans_of(split, sequence_length)
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
        return PackedSequences(_shards(ready), count, source.document_mask)
    return corpus_of(ready)


def whole_sequences(source: Source, count: SampleCount, context_length: int) -> WholeSequences:
    """The samples of a training whose sequences have lengths of their own, of a prepared source. Raises ExecutionError where
    there is none."""
    found = WholeSequences(_shards(source), count, context_length)
    _ = found.spans
    return found


def source_digest(source: Source) -> str:
    """What tells these tokens and their order from others, of a prepared source; bytes are read for it."""
    return opened(source).digest


def corpus_of(source: Source) -> Corpus:
    """The standard library's sources, or a folder or file of text, as bytes. Raises ExecutionError."""
    if source.evaluate_data is not None:
        return Corpus.of_two(_text(source, TRAINED), _text(source, HELD_OUT))
    return Corpus.standard_library() if source.data is None else Corpus.folder(source.data)


def _shards(source: Source) -> TokenShards:
    """Of a prepared source, what is held out beside what is trained on. Raises SpecError where these are of two kinds."""
    assert source.data is not None, "a prepared source names its shards"
    shards = TokenShards.open(source.data)
    if source.evaluate_data is None:
        return shards
    held_out = TokenShards.open(source.evaluate_data)
    if held_out.tokenizer["digest"] != shards.tokenizer["digest"]:
        raise SpecError(
            f"{source.data} has tokens of {shards.tokenizer['name']}, {source.evaluate_data} those of "
            f"{held_out.tokenizer['name']}, or another kind of documents",
            allowed="the same tokenizer for both, and text or conversations in both",
            next="name the tokenizer with --tokenizer",
        )
    left_out = Counter(shards.left_out) + Counter(held_out.left_out)
    return replace(shards, held_out=held_out.held_out, left_out=left_out)


def _text(source: Source, part: SourcePart) -> TextSource:
    """One part of a source; all of its documents are of one side where both parts are given."""
    data = part.of(source)
    text = TextSource.standard_library() if data is None else TextSource.open(data, source.text_field)
    return text if source.evaluate_data is None else replace(text, share=part.share)


def _check_template(source: Source, is_of_chats: bool) -> None:
    """Do the options of conversations go with what is read? Raises SpecError."""
    if is_of_chats and not source.document_mask:
        raise SpecError(
            f"{source.name} has conversations, and those in one sequence would see each other",
            allowed="conversations with document masks",
            next="leave --no-document-mask out",
        )
    if source.chat_template is not None and not is_of_chats:
        raise SpecError(
            f"a chat template for {source.name}, which has no conversations",
            allowed="JSON lines of messages with --chat-template",
        )


def _check_tokenizer(source: Source, shards: TokenShards) -> None:
    if source.tokenizer is None:
        return
    if has_answers(shards):
        asked: Tokenization = ChatTokenization(source.tokenizer, source.chat_template)
    else:
        asked = tokenization(source.tokenizer)
    if asked.digest != shards.tokenizer["digest"]:
        raise SpecError(
            f"the shards in {source.data} were made with the tokenizer {shards.tokenizer['name']}, not with {asked.name}",
            next="leave the tokenizer out, or give the text instead of the shards",
        )
