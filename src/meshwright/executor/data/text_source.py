"""Where text comes from: a folder or file of text and JSONL, read document by document in pieces of bounded size.

A text file is a document; so is a line of a JSONL file, an object with the text in one of its fields. A document is held out
by the hash of its identity: a file's name below the folder, a line's text. So equal lines are never on both sides, and what
was held out stays so when documents are added.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.training.source import PathLike

HELD_OUT_SHARE = 0.05  # of the documents; half a megabyte of the standard library
ZERO_BYTE = b"\0"  # text has none: a file with one is binary
PIECE_BYTES = 1 << 18  # what is read at once of one document, and given to a tokenizer as one text
# Tests are half of the library and much of them generated tables; site-packages differ between machines.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
SKIPPED_PREFIX = "_sysconfigdata"  # written when Python was built: paths of one machine
TEXT_SUFFIXES = {
    ".txt",
    ".md",
    ".rst",
    ".py",
    ".json",
    ".csv",
    ".tex",
    ".c",
    ".h",
    ".cpp",
    ".rs",
    ".go",
    ".js",
}
JSONL_SUFFIXES = {".jsonl", ".ndjson"}

_log = logging.getLogger(__name__)


class TextPiece(NamedTuple):
    """Consecutive bytes of one document. ``place`` says where they stand, for messages; ``share`` is the document's hash in
    [0, 1), held out where it is small; ``begins`` and ``ends``: the first, the last piece of its document.
    """

    place: str
    share: float
    data: bytes
    begins: bool = True
    ends: bool = True


class SourceFile(NamedTuple):
    """A file by its name below the root, as it was when the source was opened."""

    name: str
    size_bytes: int
    mtime_ns: int

    @property
    def is_jsonl(self) -> bool:
        """Are its lines documents?"""
        return Path(self.name).suffix in JSONL_SUFFIXES


@dataclass(frozen=True)
class TextSource:
    """Files of text below `root` (the folder of a single file); `field` of a JSONL object holds its text.

    ``field`` "": whole lines of JSONL are documents, one piece each. ``share``: what all documents have as theirs; None:
    each has one by its hash.
    """

    name: str
    root: Path
    files: tuple[SourceFile, ...]
    field: str = "text"
    share: float | None = None

    @classmethod
    def open(cls, path: PathLike, field: str = "text") -> TextSource:
        """All files of text and JSONL below a folder (by suffix), or one file: JSONL by its suffix, else text.

        Raises SpecError where there is none.
        """
        root = Path(path)
        if root.is_file():
            return cls._of(root.name, root.parent, [root], field)
        if not root.is_dir():
            raise SpecError(f"there is no folder {root}", allowed="a folder of text or JSONL, or one file")
        return cls._of(root.name, root, text_files(root, TEXT_SUFFIXES | JSONL_SUFFIXES), field)

    @classmethod
    def standard_library(cls) -> TextSource:
        """The sources of the running Python's standard library, without its tests."""
        root = Path(sysconfig.get_path("stdlib"))
        paths = [path for path in text_files(root, {".py"}) if not path.name.startswith(SKIPPED_PREFIX)]
        return cls._of("python standard library", root, paths, "text")

    @classmethod
    def _of(cls, name: str, root: Path, paths: Iterable[Path], field: str) -> TextSource:
        found, num_unreadable = [], 0
        for path in paths:
            if not os.access(path, os.R_OK):
                num_unreadable += 1
                continue
            status = path.stat()
            found.append(SourceFile(path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns))
        if num_unreadable:
            _log.warning("%d files of %s cannot be read and are left out", num_unreadable, root)
        if not found:
            raise SpecError(
                f"{root} has no file of text",
                allowed=f"files that end in {_listed(TEXT_SUFFIXES | JSONL_SUFFIXES)}",
            )
        return cls(name, root, tuple(found), field)

    @property
    def has_jsonl(self) -> bool:
        """Is any of its files JSONL?"""
        return any(file.is_jsonl for file in self.files)

    @property
    def digest(self) -> str:
        """Of names, sizes, times of last change and the field: contents are not read, so that a job with the same
        source begins at once. A file that is changed without its size or time changing is not noticed.
        """
        told = json.dumps([self.field if self.has_jsonl else "", *self.files, *self._own_share])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    @property
    def _own_share(self) -> tuple[float, ...]:
        return () if self.share is None else (self.share,)

    def first_line(self) -> bytes:
        """Of its first file of JSONL, the first that is not blank; nothing where there is none."""
        for file in filter(lambda one: one.is_jsonl, self.files):
            with (self.root / file.name).open("rb") as lines:
                return next((line for line in lines if not line.isspace()), b"")
        return b""

    def in_lines(self) -> TextSource:
        """The same with whole lines of JSONL as documents. Raises SpecError where other files are among them."""
        others = [file.name for file in self.files if not file.is_jsonl]
        if others:
            raise SpecError(
                f"{self.root} has conversations, and {others[0]} is a file of text",
                allowed="one of both in a folder",
                next="name the file of conversations alone",
            )
        return replace(self, field="")

    def pieces(self) -> Iterator[TextPiece]:
        """All documents in the order of their files' names and lines; empty ones and those with a zero byte are left out.

        One text file alone, whose documents have their own shares, is cut in two: its last twentieth is the held-out one.

        Raises SpecError for a line that is no object with the text, naming file and line, and for a file that has gone.
        """
        for piece in self._pieces():
            yield piece if self.share is None else piece._replace(share=self.share)

    def _pieces(self) -> Iterator[TextPiece]:
        num_binary = 0
        for file in self.files:
            path = self.root / file.name
            try:
                if file.is_jsonl:
                    yield from self._lines(path)
                elif _has_zero_byte(path):
                    num_binary += 1
                elif len(self.files) == 1 and self.share is None:
                    yield from _cut_in_two(path)
                else:
                    yield from _pieces_of_range(path, hash_share(file.name), 0, path.stat().st_size)
            except OSError as error:
                raise SpecError(f"{path} cannot be read: {error.strerror or error}") from error
        if num_binary:
            _log.warning(
                "%d files of %s have zero bytes, so they are no text, and are left out", num_binary, self.root
            )

    def _lines(self, path: Path) -> Iterator[TextPiece]:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                place = f"{path}, line {number}"
                if not self.field:
                    yield TextPiece(place, hash_share(line.strip()), line)
                    continue
                data = _text_of_line(line, self.field, place)
                if data and ZERO_BYTE not in data:
                    yield from _cut(place, hash_share(data), data)


def hash_share(identity: str | bytes) -> float:
    """A document's hash as a number in [0, 1), the same on every machine."""
    data = identity.encode() if isinstance(identity, str) else identity
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little") / 2**32


def text_files(root: Path, suffixes: set[str]) -> Sequence[Path]:
    """Files with these suffixes below `root`, sorted by relative name."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        found += [Path(folder) / name for name in names if Path(name).suffix in suffixes]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _text_of_line(line: bytes, field: str, place: str) -> bytes:
    """The text in a JSONL line. Raises SpecError that names the place."""
    try:
        entry = json_of(line)
    except ValueError as error:
        raise SpecError(f"{place} is not JSON: {error}", allowed="one JSON object a line") from error
    if not isinstance(entry, dict) or not isinstance(entry.get(field), str):
        what = (
            f"an object with {_listed(entry) or 'no field'}"
            if isinstance(entry, dict)
            else type(entry).__name__
        )
        raise SpecError(
            f"{place} is {what}",
            allowed=f"an object whose field {field!r} is a string",
            next="name the field that holds the text, or mend the line",
        )
    try:
        return str(entry[field]).encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{place} has half of a surrogate pair: {error}", allowed="whole characters"
        ) from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _has_zero_byte(path: Path) -> bool:
    with path.open("rb") as file:
        return any(ZERO_BYTE in part for part in iter(lambda: file.read(PIECE_BYTES), b""))


def _cut_in_two(path: Path) -> Iterator[TextPiece]:
    """One file as a document to train on and, from the next line on, one to hold out."""
    size = path.stat().st_size
    cut = int(size * (1 - HELD_OUT_SHARE))
    with path.open("rb") as file:
        file.seek(cut)
        rest = file.readline(PIECE_BYTES)
    if rest.endswith(b"\n") and len(rest) < size - cut:
        cut += len(rest)
    else:  # no line ends in what is held out: where a character begins
        cut += next((i for i, byte in enumerate(rest) if byte & 0xC0 != 0x80), len(rest))
    yield from _pieces_of_range(path, 1.0, 0, cut)
    yield from _pieces_of_range(path, 0.0, cut, size)


def _pieces_of_range(path: Path, share: float, low: int, high: int) -> Iterator[TextPiece]:
    """Bytes `low` to `high` of a file, cut behind the last line that fits into a piece."""
    begins, rest = True, b""
    with path.open("rb") as file:
        file.seek(low)
        while low < high:
            read = file.read(min(PIECE_BYTES, high - low))
            if not read:
                raise SpecError(f"{path} has become shorter while it was read")
            low, data = low + len(read), rest + read
            at = len(data) if low >= high else _cut_place(data)
            rest = data[at:]
            if at:
                yield TextPiece(str(path), share, data[:at], begins, low >= high)
                begins = False


def _cut(place: str, share: float, data: bytes) -> Iterator[TextPiece]:
    """A document that is in memory, in pieces."""
    low = 0
    while low < len(data):
        part = data[low : low + PIECE_BYTES]
        at = len(part) if low + PIECE_BYTES >= len(data) else _cut_place(part)
        yield TextPiece(place, share, part[:at], low == 0, low + at >= len(data))
        low += at


def _cut_place(data: bytes) -> int:
    """Where a piece may end: behind its last line; without one, behind its last whole character of UTF-8."""
    at = data.rfind(b"\n") + 1
    if at:
        return at
    at = len(data) - 1
    while at > 0 and data[at] & 0xC0 == 0x80:  # the bytes of a character behind its first
        at -= 1
    num_bytes = next((n for n, first in ((4, 0xF0), (3, 0xE0), (2, 0xC0)) if data[at] >= first), 1)
    return at if at and len(data) - at < num_bytes else len(data)
