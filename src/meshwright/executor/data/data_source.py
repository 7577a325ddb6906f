"""What a training reads: bytes of text files as they are, or documents that have been tokenised into shards.

Text files without a tokenizer are bytes, read whole by every process. With a tokenizer, and for JSONL, shards are made once,
by whoever prepares the job, before its processes start; all of these then map the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshwright.executor.data.corpus import Corpus, check_length
from meshwright.executor.data.packing import PackedSequences, SampleCount, num_sequences
from meshwright.executor.data.shard_writer import make_shards
from meshwright.executor.data.text_source import TextSource
from meshwright.executor.data.token_shard import TokenShards, has_shards
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES, tokenization
from meshwright.specs.error import ExecutionError, SpecError

STANDARD_LIBRARY = "standard_library"
ONE_BY_ONE = SampleCount(per_step=1)


@dataclass(frozen=True)
class DataSource:
    """Where tokens come from.

    ``data``: "standard_library", a folder or file of text or JSONL, or a folder of token shards. ``tokenizer``: a
    tokenizer.json or the folder that holds one; "": bytes. ``text_field``: of JSONL objects. ``document_mask``: documents
    in shards do not see each other.
    """

    data: str
    tokenizer: str = ""
    text_field: str = "text"
    document_mask: bool = True

    @property
    def has_shards(self) -> bool:
        """Are there shards to open already?"""
        return self.data != STANDARD_LIBRARY and has_shards(self.data)

    @property
    def has_documents(self) -> bool:
        """Are documents masked? True once there are shards."""
        return self.document_mask and self.has_shards

    def prepared(
        self, folder: str | Path | None = None, progress: Callable[[float], None] | None = None
    ) -> DataSource:
        """The same with shards to open, made now where text has to be tokenised; bytes stay as they are.

        Args:
            folder: where shards shall be; None: the user's cache. progress: as of `make_shards`.

        Raises SpecError as `make_shards` and for a tokenizer that the shards were not made with; ExecutionError for damaged
        shards.
        """
        if self.has_shards:
            self._check_tokenizer(TokenShards.open(self.data))
            return self
        if not self.tokenizer and (self.data == STANDARD_LIBRARY or not self._text().has_jsonl):
            return self
        shards = make_shards(self._text(), tokenization(self.tokenizer), folder, progress)
        return DataSource(str(shards.folder.absolute()), document_mask=self.document_mask)

    def check(self, vocabulary_size: int, sequence_length: int, has_held_out: bool) -> None:
        """Can a model of `vocabulary_size` tokens read it, and is there a sequence to train on, and to hold out where that
        is asked for? For a prepared source. Raises ExecutionError.
        """
        needed, what = NUM_BYTE_VALUES, "text read as bytes"
        if self.has_shards:
            shards = TokenShards.open(self.data)
            needed, what = shards.vocabulary_size, f"the tokenizer {shards.tokenizer['name']}"
            for split in (shards.train, *((shards.held_out,) if has_held_out else ())):
                num_sequences(split, sequence_length)
        if vocabulary_size < needed:
            raise ExecutionError(
                f"the model has a vocabulary of {vocabulary_size}, {what} has {needed} tokens",
                allowed=f"a model with a vocabulary of {needed} or more",
                next="set the model's vocabulary_size, or take another tokenizer",
            )

    def check_bytes(self, sequence_length: int) -> None:
        """Text that is read as bytes is read here once, so that what is wrong with it is said before processes start.
        Nothing for shards. Raises ExecutionError.
        """
        if not self.has_shards:
            corpus = self._corpus()
            for part, name in ((corpus.train, ""), (corpus.held_out, "held-out ")):
                check_length(part, sequence_length, name)

    def open(self, count: SampleCount = ONE_BY_ONE) -> Corpus | PackedSequences:
        """The batches of a training, and its held-out ones. Raises SpecError, ExecutionError as `prepared`.

        Args:
            count: which samples of shards a step has; not needed for what is held out.
        """
        source = self.prepared()
        if source.has_shards:
            return PackedSequences(TokenShards.open(source.data), count, self.document_mask)
        return self._corpus()

    def digest(self) -> str:
        """What tells these tokens and their order from others, of a prepared source; bytes are read for it."""
        return TokenShards.open(self.data).digest if self.has_shards else self._corpus().digest

    def _corpus(self) -> Corpus:
        return Corpus.standard_library() if self.data == STANDARD_LIBRARY else Corpus.folder(self.data)

    def _text(self) -> TextSource:
        if self.data == STANDARD_LIBRARY:
            return TextSource.standard_library()
        return TextSource.open(self.data, self.text_field)

    def _check_tokenizer(self, shards: TokenShards) -> None:
        if not self.tokenizer:
            return
        asked = tokenization(self.tokenizer)
        if asked.digest != shards.tokenizer["digest"]:
            raise SpecError(
                f"the shards in {self.data} were made with the tokenizer {shards.tokenizer['name']}, not with {asked.name}",
                next="leave the tokenizer out, or give the text instead of the shards",
            )
