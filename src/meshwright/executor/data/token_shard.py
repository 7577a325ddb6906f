"""Token shards: a folder of memory-mapped arrays with one JSON header, opened in no time and read by any number of ranks.

A folder has two splits, train and held_out. A split is a row of documents, each with its end token, in shards: a file of
tokens (uint16, or uint32 where the vocabulary needs it) and a file of int64, the places in it where documents begin; of
conversations also a file with a byte for every token, 1 where it is an answer. Numbers are little-endian. `shards.json`
says dtype, counts, tokenizer, source, and every file's size and SHA-256. Opening compares sizes; `verify` reads everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.executor.file.new_file import sha256_of
from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.source import PathLike

Integers = npt.NDArray[np.int64]

SCHEMA = 2  # 1: without answers
KIND = "token shards"
HEADER = "shards.json"
TRAIN, HELD_OUT = "train", "held_out"
TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
START_DTYPE = np.dtype("<i8")
DIGEST_BYTES = 16
SHARD_FILES = ("tokens", "starts", "answers")


@dataclass(frozen=True)
class ShardFile:
    """A file of a shard, as its writer left it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenShard:
    """One shard of a split."""

    num_tokens: int
    num_documents: int
    tokens: ShardFile
    starts: ShardFile
    answers: ShardFile | None = None

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """All that there are."""
        return (self.tokens, self.starts, *([] if self.answers is None else [self.answers]))


@dataclass(frozen=True, eq=False)
class TokenSplit:
    """The documents of one split as one row of tokens, `num_tokens` long, whatever shards hold it."""

    folder: Path
    dtype: np.dtype[Any]
    shards: tuple[TokenShard, ...]

    @property
    def num_documents(self) -> int:
        """Documents of all shards."""
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards, ends of documents among them."""
        return int(self._offsets[-1])

    @property
    def has_answers(self) -> bool:
        """Is it said which tokens are to be learned? Else all are."""
        return any(shard.answers is not None for shard in self.shards)

    @cached_property
    def _offsets(self) -> Integers:
        """Where shards begin in the row; then its end."""
        return np.cumsum([0, *(shard.num_tokens for shard in self.shards)], dtype=np.int64)

    @cached_property
    def _documents_before(self) -> Integers:
        """Documents that begin in earlier shards."""
        return np.cumsum([0, *(shard.num_documents for shard in self.shards)], dtype=np.int64)

    @cached_property
    def _tokens(self) -> Sequence[npt.NDArray[Any]]:
        return [np.memmap(self.folder / s.tokens.name, self.dtype, "r") for s in self.shards]

    @cached_property
    def _starts(self) -> Sequence[npt.NDArray[Any]]:
        return [np.memmap(self.folder / s.starts.name, START_DTYPE, "r") for s in self.shards]

    @cached_property
    def _answers(self) -> Sequence[npt.NDArray[np.bool_]]:
        return [np.memmap(self.folder / s.answers.name, np.bool_, "r") for s in self.shards if s.answers]

    def answers(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Which of `count` tokens from place `first` on are to be learned, where that is said."""
        parts = [self._answers[shard][low:high] for shard, low, high in self._parts(first, count)]
        return np.concatenate([*parts, np.empty(0, np.bool_)])

    def read(self, first: int, count: int) -> Integers:
        """`count` tokens from place `first` on, as int64. They must be within the row."""
        assert 0 <= first and first + count <= self.num_tokens, "the caller counts sequences by num_tokens"
        parts = [
            self._tokens[shard][low:high].astype(np.int64) for shard, low, high in self._parts(first, count)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])

    def starts(self, first: int, count: int) -> Integers:
        """Places in the row, rising, of the documents that begin among `count` tokens from `first` on."""
        found = []
        for shard, low, high in self._parts(first, count):
            starts = self._starts[shard]
            cut = starts[np.searchsorted(starts, low) : np.searchsorted(starts, high)]
            found.append(cut.astype(np.int64) + self._offsets[shard])
        return np.concatenate([*found, np.empty(0, np.int64)])

    def num_begun(self, places: Integers) -> Integers:
        """For every place in the row: how many documents have begun before it (those that begin on it not counted)."""
        shards = np.searchsorted(self._offsets, places, side="right") - 1
        counts = np.empty(len(places), np.int64)
        for shard in np.unique(shards):
            chosen = shards == shard
            before = self._documents_before[min(shard, len(self.shards))]
            if shard < len(self.shards):
                inside = np.searchsorted(self._starts[shard], places[chosen] - self._offsets[shard])
                counts[chosen] = before + inside
            else:  # the row's end
                counts[chosen] = before
        return counts

    @cached_property
    def document_lengths(self) -> Integers:
        """Tokens of every document, in their order, its end among them. Reads no token."""
        return np.diff(self.starts(0, self.num_tokens), append=self.num_tokens)

    def _parts(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """(shard, low, high) of the shards that hold a range, places counted in the shard."""
        offsets, stop = self._offsets, first + count
        shard = int(np.searchsorted(offsets, first, side="right")) - 1
        parts = []
        while shard < len(self.shards) and offsets[shard] < stop:
            low, high = max(first, int(offsets[shard])), min(stop, int(offsets[shard + 1]))
            parts.append((shard, low - int(offsets[shard]), high - int(offsets[shard])))
            shard += 1
        return parts


@dataclass(frozen=True, eq=False)
class TokenShards:
    """An opened folder of shards. ``left_out``: documents that are not in it, by why."""

    folder: Path
    vocabulary_size: int
    end_id: int
    tokenizer: Mapping[str, str]
    source: Mapping[str, str]
    train: TokenSplit
    held_out: TokenSplit
    left_out: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: PathLike) -> TokenShards:
        """Read the header and compare the files' sizes with it; no token is read.

        Raises ExecutionError: no shards there, of a newer schema, or a file is missing or of another size.
        """
        root = Path(folder)
        header = _header(root)
        try:
            dtype = TOKEN_DTYPES[header["dtype"]]
            splits = {name: _split(root, dtype, header["splits"][name]) for name in (TRAIN, HELD_OUT)}
            shards = cls(
                root, int(header["vocabulary_size"]), int(header["end_id"]), dict(header["tokenizer"]),
                dict(header["source"]), splits[TRAIN], splits[HELD_OUT], dict(header.get("left_out", {})),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ExecutionError(
                f"{root / HEADER} is no header of token shards: {type(error).__name__} {error}",
                next="make the shards again",
            ) from error
        for split in splits.values():
            for shard in split.shards:
                _check_sizes(root, shard, split.dtype.itemsize)
        return shards

    @property
    def digest(self) -> str:
        """Which tokens these are: of the files' checksums and the tokenizer, so that text that was copied, or only touched,
        is the same.
        """
        files = [
            [file.sha256 for shard in split.shards for file in shard.files]
            for split in (self.train, self.held_out)
        ]
        told = json.dumps([self.vocabulary_size, self.end_id, self.tokenizer["digest"], files])
        return hashlib.blake2b(told.encode(), digest_size=DIGEST_BYTES).hexdigest()

    def verify(self) -> None:
        """Read every file and compare its checksum. Raises ExecutionError that names the first one that differs."""
        for split in (self.train, self.held_out):
            for shard in split.shards:
                for file in shard.files:
                    path = self.folder / file.name
                    try:
                        found = sha256_of(path)
                    except OSError as error:
                        raise ExecutionError(f"{path} cannot be read: {error.strerror or error}") from error
                    if found != file.sha256:
                        raise ExecutionError(
                            f"{path} has SHA-256 {found}, its header says {file.sha256}",
                            next="the file was changed or the disk lost something: make the shards again",
                        )


def has_shards(folder: PathLike) -> bool:
    """Is it a folder of token shards?"""
    return (Path(folder) / HEADER).is_file()


def _header(folder: Path) -> Mapping[str, Any]:
    path = folder / HEADER
    try:
        header = json_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExecutionError(
            f"there are no token shards in {folder}",
            allowed=f"a folder with {HEADER}",
            next="make them first",
        ) from error
    except ValueError as error:
        raise ExecutionError(f"{path} is not JSON: {error}", next="make the shards again") from error
    if (
        not isinstance(header, dict)
        or header.get("kind") != KIND
        or not isinstance(header.get("schema"), int)
    ):
        raise ExecutionError(f"{path} is no header of token shards", next="make the shards again")
    if header["schema"] > SCHEMA:
        raise ExecutionError(
            f"{path} has schema {header['schema']}, written by a newer meshwright",
            allowed=f"schema {SCHEMA} or older",
            next="upgrade meshwright",
        )
    return header


def _split(folder: Path, dtype: np.dtype[Any], fields: Mapping[str, Any]) -> TokenSplit:
    shards = [
        TokenShard(
            int(one["num_tokens"]),
            int(one["num_documents"]),
            *(_shard_file(**one[what]) for what in SHARD_FILES if what in one),
        )
        for one in fields["shards"]
    ]
    if len({shard.answers is None for shard in shards}) > 1:
        raise ValueError("says of some shards what is learned, and of others not")
    return TokenSplit(folder, dtype, tuple(shards))


def _shard_file(name: str, size_bytes: int, sha256: str) -> ShardFile:
    """What the header says of a file, which is in the header's folder and nowhere else."""
    if Path(name).name != name:
        raise ValueError(f"names the file {name!r}")
    return ShardFile(name, size_bytes, sha256)


def _check_sizes(folder: Path, shard: TokenShard, token_bytes: int) -> None:
    """Do counts, header and files agree?"""
    counted = (
        shard.num_tokens * token_bytes,
        shard.num_documents * START_DTYPE.itemsize,
        shard.num_tokens,
    )
    for file, expected_bytes in zip(shard.files, counted, strict=False):
        path = folder / file.name
        found_bytes = path.stat().st_size if path.is_file() else None
        if not found_bytes == file.size_bytes == expected_bytes:
            found = "missing" if found_bytes is None else f"{found_bytes} bytes"
            raise ExecutionError(
                f"{path} is {found}, its header says {file.size_bytes} for {expected_bytes} bytes of content",
                next="copy it whole, or make the shards again",
            )
