"""A corpus of bytes that every machine has: the Python standard library's sources, or a folder of text.

Shapes: B samples, S tokens. A token is a byte; the vocabulary has 256.

A batch is a function of (seed, step, sample number, sequence length) and of nothing else: not of ranks,
microbatches or what was read before. So a job resumes, or changes its layout, on the exact sample order.
"""

from __future__ import annotations

import hashlib
import logging
import math
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from meshwright.executor.data.text_source import (
    HELD_OUT_SHARE,
    SKIPPED_PREFIX,
    TEXT_SUFFIXES,
    hash_share,
    text_files,
)
from meshwright.executor.data.text_source import ZERO_BYTE as FILE_END  # so that a file's end can be learned
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.source import PathLike

Bytes = npt.NDArray[np.uint8]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """Train and held-out bytes of whole files. `digest` identifies content and split."""

    name: str
    train: Bytes = field(repr=False)
    held_out: Bytes = field(repr=False)
    num_files: int
    digest: str

    @classmethod
    @lru_cache(maxsize=1)
    def standard_library(cls, folder: Path | None = None) -> Corpus:
        """The sources of the running Python's standard library, without its tests; read once a process.

        Raises ExecutionError where Python was installed without sources.
        """
        root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
        paths = [path for path in text_files(root, {".py"}) if not path.name.startswith(SKIPPED_PREFIX)]
        return _read(cls, "python standard library", root, paths)

    @classmethod
    def folder(cls, folder: PathLike) -> Corpus:
        """All text files below `folder` (by suffix), or one text file of any suffix."""
        root = Path(folder)
        if root.is_file():
            return _read_one(cls, root)
        if not root.is_dir():
            raise ExecutionError(f"there is no folder {root}", allowed="a folder of text files, or one file")
        paths = text_files(root, TEXT_SUFFIXES)
        return _read_one(cls, paths[0]) if len(paths) == 1 else _read(cls, root.name, root, paths)

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS (the next byte), int64, of the given samples of step `step`."""
        starts = [self._start(seed, step, sample, sequence_length) for sample in samples]
        return _windows(self.train, starts, sequence_length)

    def held_out_batches(
        self, num_sequences: int, sequence_length: int, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`num_sequences` windows spread evenly over the held-out files, always the same ones."""
        last = _last_start(self.held_out, sequence_length)
        starts = [int(start) for start in np.linspace(0, last, num_sequences)]
        for first in range(0, num_sequences, batch_size):
            yield _windows(self.held_out, starts[first : first + batch_size], sequence_length)

    def held_out_windows(
        self, samples: Sequence[int], num_samples: int, sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS: some of `num_samples` windows spread evenly over the held-out files."""
        last = _last_start(self.held_out, sequence_length)
        return _windows(
            self.held_out, [sample * last // max(1, num_samples - 1) for sample in samples], sequence_length
        )

    def unigram_entropy(self) -> float:
        """Nats per byte of the held-out files under the train files' byte frequencies (add-one smoothed).

        A model that knows only how frequent each byte is reaches this; one that learned more is below.
        """
        train = np.bincount(self.train, minlength=NUM_BYTE_VALUES) + 1.0
        held_out = np.bincount(self.held_out, minlength=NUM_BYTE_VALUES)
        return float(-(held_out / held_out.sum()) @ np.log(train / train.sum()))

    def _start(self, seed: int, step: int, sample: int, sequence_length: int) -> int:
        last = _last_start(self.train, sequence_length)
        key = hashlib.blake2b(f"{seed}/{step}/{sample}".encode(), digest_size=8).digest()
        return int.from_bytes(key, "little") % (last + 1)


def check_length(data: Bytes, sequence_length: int, name: str = "") -> None:
    """Is there a window of S tokens and one target? ``name``: of the part ("held-out "). Raises ExecutionError."""
    if len(data) <= sequence_length:
        raise ExecutionError(
            f"a sequence of {sequence_length} tokens and its target do not fit into {len(data)} bytes of {name}text",
            allowed=f"sequences up to {max(len(data) - 1, 0)}",
            next="shorten the sequences or give more text",
        )


def _last_start(data: Bytes, sequence_length: int) -> int:
    """Where the last window of S tokens and one target can begin. Raises ExecutionError where there is none."""
    check_length(data, sequence_length)
    return len(data) - sequence_length - 1


def _windows(data: Bytes, starts: Sequence[int], sequence_length: int) -> tuple[Tensor, Tensor]:
    rows = np.stack([data[start : start + sequence_length + 1] for start in starts]).astype(np.int64)
    window = torch.from_numpy(rows)
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def _read(kind: type[Corpus], name: str, root: Path, paths: Sequence[Path]) -> Corpus:
    """Read `paths` into two arrays, split by the hash of the relative name; of few files the one with the least hash is
    held out.
    """
    texts: list[tuple[float, bytes]] = []
    num_skipped = num_binary = 0
    for path in paths:
        try:
            text = path.read_bytes()
        except OSError as error:
            num_skipped += 1
            _log.debug("left out of the corpus: %s (%s)", path, error)
            continue
        if FILE_END in text:
            num_binary += 1
        elif text:
            texts.append((hash_share(path.relative_to(root).as_posix()), text + FILE_END))
    if num_binary:
        _log.warning(
            "%d files of %s have zero bytes, so they are no text, and are left out", num_binary, root
        )
    if num_skipped:
        _log.warning("%d of %d files of the corpus %r cannot be read", num_skipped, len(paths), name)
    limit = HELD_OUT_SHARE
    if texts and len({share < limit for share, _ in texts}) == 1:
        limit = math.nextafter(min(share for share, _ in texts), 1.0)
    parts = {side: [text for share, text in texts if (share < limit) == side] for side in (False, True)}
    if not parts[False] or not parts[True]:
        raise ExecutionError(
            f"{root} has {len(parts[False])} files to train on and {len(parts[True])} to hold out",
            allowed="enough readable text files that both are at least one",
            next="give a folder of text files, or one text file, with --data",
        )
    arrays = [np.frombuffer(b"".join(parts[is_held_out]), np.uint8) for is_held_out in (False, True)]
    return _corpus(kind, name, arrays[0], arrays[1], len(parts[False]) + len(parts[True]))


def _read_one(kind: type[Corpus], path: Path) -> Corpus:
    """One file: its end is held out."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    num_train = len(data) - math.ceil(len(data) * HELD_OUT_SHARE)
    return _corpus(kind, path.name, data[:num_train], data[num_train:], 1)


def _corpus(kind: type[Corpus], name: str, train: Bytes, held_out: Bytes, num_files: int) -> Corpus:
    content = hashlib.blake2b(train.data, digest_size=8)
    content.update(b"held out")
    content.update(held_out.data)
    return kind(name, train, held_out, num_files, content.hexdigest())
