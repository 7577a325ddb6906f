"""Making token shards: text is tokenised and written in a stream, and the folder appears whole or not at all.

A maker writes into a folder of its own beside the target, syncs every file and renames that folder; whoever comes second to
the same name finds it taken and uses what is there. Shards that were made of the same source by the same tokenizer are used
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from meshwright.executor.data.text_source import HELD_OUT_SHARE, TextPiece, TextSource
from meshwright.executor.data.token_shard import (
    HEADER,
    HELD_OUT,
    KIND,
    SCHEMA,
    SHARD_FILES,
    START_DTYPE,
    TOKEN_DTYPES,
    TRAIN,
    TokenShards,
    has_shards,
)
from meshwright.executor.data.tokenization import EncodedPiece, Tokenization
from meshwright.executor.file.new_file import NewFile, flush_folder, make_folder, rename, write_text
from meshwright.specs.cluster.profile import cache_path
from meshwright.specs.error import SpecError

SHARD_TOKENS = 1 << 27  # a shard ends behind the first document that reaches it: 256 MB of uint16
BATCH_BYTES = (
    1 << 20
)  # text tokenised at once: enough for all cores; a tokenizer takes some 100 bytes for each
PARTIAL = ".partial-"  # in the name of a folder that is being written
STALE_S = 86_400.0  # such a folder that nobody has written to for a day was left by a maker that died

_log = logging.getLogger(__name__)


def make_shards(
    source: TextSource,
    tokenization: Tokenization,
    folder: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> TokenShards:
    """The shards of a source, made where they are not there yet. Any number of processes may call it at once.

    Args:
        folder: where they shall be; None: in the user's cache, under a name made of the source and the tokenizer.
        progress: called with the share of the text that is done, now and then; not where shards are there already.

    Raises:
        SpecError: text that cannot be read, too few documents, a folder that holds something else or cannot be written.
        ExecutionError: shards that are there already are damaged.
    """
    target = cache_folder(source, tokenization) if folder is None else Path(folder)
    # Looked at first: what another process gives this name meanwhile is shards, and never something else.
    has_something = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if has_shards(target):
        shards = _reused(target, source, tokenization)
        shards.verify()
        return shards
    if has_something:
        raise SpecError(f"{target} is not empty", allowed="a folder that does not exist yet, or an empty one")
    try:
        _clear_stale(target)
        with _partial(target) as partial:
            header = _write(partial, source, tokenization, progress)
            write_text(partial / HEADER, json.dumps(header, indent=1))
            _publish(partial, target)
    except OSError as error:
        raise SpecError(
            f"token shards cannot be written to {target}: {error.strerror or error}",
            next="name another folder, or make room",
        ) from error
    return _reused(target, source, tokenization)


def cache_folder(source: TextSource, tokenization: Tokenization) -> Path:
    """Where shards are kept in the user's cache ($XDG_CACHE_HOME, else ~/.cache)."""
    told = f"{SCHEMA} {source.digest} {tokenization.digest}"
    digest = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
    return cache_path("shards").with_suffix("") / f"{Path(source.name).stem.replace(' ', '_')}-{digest}"


def _reused(target: Path, source: TextSource, tokenization: Tokenization) -> TokenShards:
    """What is there, where it is what was asked for."""
    shards = TokenShards.open(target)
    wanted = (source.digest, tokenization.digest)
    if (shards.source["digest"], shards.tokenizer["digest"]) != wanted:
        raise SpecError(
            f"{target} holds shards of {shards.source['name']} by {shards.tokenizer['name']}, made of other text or with "
            "another tokenizer",
            next="name another folder, or remove this one",
        )
    return shards


def _write(
    partial: Path, source: TextSource, tokenization: Tokenization, progress: Callable[[float], None] | None
) -> dict[str, Any]:
    """All shards into a folder; returns their header. Where no document is held out by its share, the least one is."""
    dtype = "uint16" if tokenization.vocabulary_size <= 1 << 16 else "uint32"
    left_out: Counter[str] = Counter()
    splits, least = _write_splits(partial, source, tokenization, dtype, HELD_OUT_SHARE, left_out, progress)
    if not _has_all(splits, source):  # few documents: all on one side of the limit
        for path in partial.iterdir():
            path.unlink()
        left_out.clear()
        limit = float(np.nextafter(least, 1.0))
        splits, _ = _write_splits(partial, source, tokenization, dtype, limit, left_out)
    if not _has_all(splits, source):
        total = sum(split["num_documents"] for split in splits.values())
        raise SpecError(
            f"{source.name} has {total} documents{_and_left_out(left_out)}, which cannot be divided into some to train on "
            "and some to hold out",
            allowed="two or more that differ",
            next="give more documents, one text file, whose end is held out, or what is held out by itself "
            "(--evaluate-data)",
        )
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "dtype": dtype,
        "vocabulary_size": tokenization.vocabulary_size,
        "end_id": tokenization.end_id,
        "tokenizer": {"name": tokenization.name, "digest": tokenization.digest},
        "source": {"name": source.name, "digest": source.digest},
        "left_out": dict(left_out),
        "splits": splits,
    }


def _write_splits(
    partial: Path,
    source: TextSource,
    tokenization: Tokenization,
    dtype: str,
    limit: float,
    left_out: Counter[str],
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, Any], float]:
    """Tokenise and write everything; documents with a share below `limit` are held out. Returns the splits' headers and the
    least share of a document; counts in `left_out` those that have no tokens, by the reason.
    """
    least, done_bytes = 1.0, 0
    whole_bytes = max(1, sum(file.size_bytes for file in source.files))
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(SplitWriter(partial, name, dtype, tokenization.end_id))
            for name in (TRAIN, HELD_OUT)
        }
        for pieces in _batches(source.pieces()):
            if progress is not None:
                progress(min(1.0, done_bytes / whole_bytes))
            done_bytes += sum(len(piece.data) for piece in pieces)
            for piece, encoded in zip(pieces, tokenization.encode(pieces), strict=True):
                if encoded.left_out:
                    left_out[encoded.left_out] += 1
                    continue
                least = min(least, piece.share)
                writers[HELD_OUT if piece.share < limit else TRAIN].add(encoded, piece.begins, piece.ends)
        return {name: writer.finish() for name, writer in writers.items()}, least


def _has_all(splits: dict[str, Any], source: TextSource) -> bool:
    """Has each side a document, or, where all are meant for one, that one?"""
    filled = [split["num_documents"] > 0 for split in splits.values()]
    return all(filled) if source.share is None else any(filled)


def told_counts(counts: Mapping[str, int]) -> str:
    """Of what how many: "3 without an answer, 1 of another kind"."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _and_left_out(counts: Mapping[str, int]) -> str:
    return f" (left out are {told_counts(counts)})" if counts else ""


def _batches(pieces: Iterator[TextPiece]) -> Iterator[list[TextPiece]]:
    """Runs of pieces of about BATCH_BYTES."""
    run: list[TextPiece] = []
    size_bytes = 0
    for piece in pieces:
        run.append(piece)
        size_bytes += len(piece.data)
        if size_bytes >= BATCH_BYTES:
            yield run
            run, size_bytes = [], 0
    if run:
        yield run


class SplitWriter:
    """Writes the documents of one split into shards; as a context it closes its files whatever happens."""

    def __init__(self, folder: Path, split: str, dtype: str, end_id: int) -> None:
        self._folder, self._split, self._end_id = folder, split, end_id
        self._dtype = TOKEN_DTYPES[dtype]
        self._shards: list[dict[str, Any]] = []
        self._files: list[NewFile] = []
        self._stack = contextlib.ExitStack()
        self._num_tokens = self._num_documents = 0

    def add(self, encoded: EncodedPiece, begins: bool, ends: bool) -> None:
        """Tokens of a document that begins or ends with them; an end token is put behind them where it has not its own."""
        tokens, has_answers = encoded.tokens, encoded.answers is not None
        if begins and self._num_tokens >= SHARD_TOKENS:
            self._end_shard()
        if not self._files:
            stem = f"{self._split}-{len(self._shards):05}"
            self._files = [
                self._stack.enter_context(NewFile(self._folder / f"{stem}.{what}"))
                for what in SHARD_FILES[: 2 + has_answers]
            ]
        if begins:
            self._files[1].write(np.array([self._num_tokens], START_DTYPE).tobytes())
            self._num_documents += 1
        if encoded.answers is not None:
            self._files[2].write(encoded.answers.tobytes())
        written = np.append(tokens, np.uint32(self._end_id)) if ends and not has_answers else tokens
        self._files[0].write(written.astype(self._dtype).tobytes())
        self._num_tokens += len(written)

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def finish(self) -> dict[str, Any]:
        """What the header says of the split."""
        self._end_shard()
        counts = ("num_tokens", "num_documents")
        return {**{name: sum(one[name] for one in self._shards) for name in counts}, "shards": self._shards}

    def _end_shard(self) -> None:
        if not self._files:
            return
        self._stack.close()
        files = {
            what: {"name": file.path.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
            for what, file in zip(SHARD_FILES, self._files, strict=False)
        }
        counts = {"num_tokens": self._num_tokens, "num_documents": self._num_documents}
        self._shards.append({**counts, **files})
        self._files, self._num_tokens, self._num_documents = [], 0, 0


@contextlib.contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A folder of our own beside the target, removed in the end unless it has become the target."""
    partial = target.parent / f"{target.name}{PARTIAL}{secrets.token_hex(8)}"
    try:
        make_folder(partial)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, target: Path) -> None:
    """Give the written folder its name; where another maker was first, leave what is there."""
    flush_folder(partial)
    try:
        rename(partial, target)
    except OSError:
        if not partial.exists() or not has_shards(target):
            raise
        _log.info("%s was made by another process meanwhile", target)


def _clear_stale(target: Path) -> None:
    """Remove what makers of this target left when they were killed, a day ago or longer."""
    for left in _siblings(target):
        try:
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
        except FileNotFoundError:  # its maker lives, and has just ended with it
            continue
        if time.time() - newest > STALE_S:
            _log.info("removing %s, left by a process that died", left)
            shutil.rmtree(left, ignore_errors=True)


def _siblings(target: Path) -> Sequence[Path]:
    return sorted(target.parent.glob(f"{target.name}{PARTIAL}*")) if target.parent.is_dir() else []
