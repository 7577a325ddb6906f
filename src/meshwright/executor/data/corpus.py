"""A corpus of bytes that every machine has: the Python standard library's sources, or a folder of text.

Shapes: B samples, S tokens. A token is a byte; the vocabulary has 256.

A batch is a function of (seed, step, sample number, sequence length) and of nothing else: not of ranks,
microbatches or what was read before. So a job resumes, or changes its layout, on the exact sample order.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from meshwright.executor.data.text_source import HELD_OUT_SHARE, TextSource
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
    def standard_library(cls) -> Corpus:
        """The sources of the running Python's standard library, without its tests; read once a process."""
        return cls._of(TextSource.standard_library())

    @classmethod
    def folder(cls, folder: PathLike) -> Corpus:
        """All text files below `folder` (by suffix), or one text file of any suffix. Raises SpecError where there is none."""
        return cls._of(TextSource.open(folder))

    @classmethod
    def of_two(cls, train: TextSource, held_out: TextSource) -> Corpus:
        """All of one source to train on, all of another held out. Raises SpecError."""
        to_train, to_hold_out = (
            np.frombuffer(b"".join(piece.data + FILE_END * piece.ends for piece in one.pieces()), np.uint8)
            for one in (train, held_out)
        )
        return cls._split(train.name, to_train, to_hold_out, len(train.files) + len(held_out.files))

    @classmethod
    def _of(cls, source: TextSource) -> Corpus:
        """Documents with their ends in two arrays; of one file alone the last twentieth is held out, to the byte.

        Raises ExecutionError where nothing is left to train on, or to hold out.
        """
        if len(source.files) == 1:
            data = np.frombuffer((source.root / source.files[0].name).read_bytes(), np.uint8)
            num_train = len(data) - math.ceil(len(data) * HELD_OUT_SHARE)
            return cls._split(source.name, data[:num_train], data[num_train:], 1)
        pieces = [(each.share, each.data + FILE_END * each.ends) for each in source.pieces()]
        limit, shares = HELD_OUT_SHARE, {share for share, _ in pieces}
        if len({share < limit for share in shares}) == 1:  # few files: the one with the least hash
            limit = math.nextafter(min(shares), 1.0)
        texts = [
            b"".join(data for share, data in pieces if (share < limit) == side) for side in (False, True)
        ]
        counts = [text.count(FILE_END) for text in texts]
        if not all(counts):
            raise ExecutionError(
                f"{source.root} has {counts[0]} files to train on and {counts[1]} to hold out",
                allowed="enough readable text files that both are at least one",
                next="give a folder of text files, or one text file, with --data",
            )
        train, held_out = (np.frombuffer(text, np.uint8) for text in texts)
        return cls._split(source.name, train, held_out, sum(counts))

    @classmethod
    def _split(cls, name: str, train: Bytes, held_out: Bytes, num_files: int) -> Corpus:
        content = hashlib.blake2b(train.data, digest_size=8)
        content.update(b"held out")
        content.update(held_out.data)
        return cls(name, train, held_out, num_files, content.hexdigest())

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
