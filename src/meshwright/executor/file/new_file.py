"""The few operations on files that checkpoints are made of: each is durable when it returns, and each can be watched."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

CHUNK_BYTES = 1 << 24  # written and hashed at once: short enough that a watchdog sees progress
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

Watch = Callable[[str, Path], None]
_watches: list[Watch] = []


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Within the block `watch(operation, path)` is called before every mkdir, write, fsync, rename and remove.

    What it raises is what the operation would have raised: so failures are tested.
    """
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)


def _about_to(operation: str, path: Path) -> None:
    for watch in _watches:
        watch(operation, path)


class NewFile:
    """A file that is written from its beginning, hashed on the way, and on the disk when its context is left.

    ``progress`` is called with the bytes of every chunk.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self.path, self.size_bytes = path, 0
        self._progress, self._hash = progress, hashlib.sha256()

    def __enter__(self) -> NewFile:
        _about_to("write", self.path)
        self._file = self.path.open("wb", buffering=0)
        return self

    def write(self, data: bytes | memoryview) -> None:
        """All of `data`, whatever the system takes at once."""
        view = memoryview(data).cast("B")
        for first in range(0, len(view), CHUNK_BYTES):
            chunk = view[first : first + CHUNK_BYTES]
            _about_to("write", self.path)
            done = 0
            while done < len(chunk):
                done += self._file.write(chunk[done:])
            self._hash.update(chunk)
            self.size_bytes += len(chunk)
            if self._progress is not None:
                self._progress(len(chunk))

    @property
    def sha256(self) -> str:
        """Of what was written so far."""
        return self._hash.hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                _about_to("fsync", self.path)
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def make_folder(path: Path) -> None:
    """A folder and those above it, on the disk."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        _about_to("mkdir", one)
        one.mkdir(exist_ok=True)
        flush_folder(one.parent)


def flush_folder(path: Path) -> None:
    """Let the names in a folder be on the disk. Windows writes them by itself, and has no such call."""
    _about_to("fsync", path)
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(path: Path, to: Path) -> None:
    """Give a file or folder another name in its folder; a file of that name is replaced."""
    _about_to("rename", path)
    path.replace(to)
    flush_folder(to.parent)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it, where it is there; other processes may remove it at the same time."""
    _about_to("remove", path)
    while path.is_dir():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> NewFile:
    """A whole small file; gives size and hash."""
    with NewFile(path) as file:
        file.write(text.encode())
    return file


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Of a file as it is on the disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    return digest.hexdigest()
