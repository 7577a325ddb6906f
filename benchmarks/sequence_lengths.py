"""Lengths of sequences for benchmarks: of the files beside the checkout, and drawn ones that no algorithm was tuned to.

- `lognormal`: median 1,100 tokens, spread 2.0 of the logarithm: a tail of any length, a tenth above 14K;
- `chats`: of a thousand sequences two documents of 270K to 330K tokens, all others short (median 350, spread 0.9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.sequence.length_file import read_lengths

Lengths = NDArray[np.int64]
BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "workloads" / "training_lengths"
LOGNORMAL_MEDIAN, LOGNORMAL_SPREAD = 1100.0, 2.0
CHAT_MEDIAN, CHAT_SPREAD = 350.0, 0.9
DOCUMENT_SHARE, DOCUMENT_TOKENS = 0.002, (270_000, 330_000)


def of_file(path: Path) -> Lengths:
    """All lengths of a file, sorted."""
    pool = read_lengths(path)
    return np.repeat(pool.lengths, pool.counts)


def lognormal(rng: np.random.Generator, count: int) -> Lengths:
    """Heavy-tailed lengths."""
    return _whole(rng.lognormal(np.log(LOGNORMAL_MEDIAN), LOGNORMAL_SPREAD, count))


def chats(rng: np.random.Generator, count: int) -> Lengths:
    """Short chats, and few documents."""
    short = _whole(rng.lognormal(np.log(CHAT_MEDIAN), CHAT_SPREAD, count))
    is_document = rng.random(count) < DOCUMENT_SHARE
    return np.where(is_document, rng.integers(*DOCUMENT_TOKENS, count), short)


def _whole(lengths: NDArray[np.float64]) -> Lengths:
    return np.maximum(1, lengths.round()).astype(np.int64)


UNTUNED: Mapping[str, Callable[[np.random.Generator, int], Lengths]] = {
    "lognormal": lognormal,
    "chats": chats,
}
