"""Two exact cuts of sorted lengths by dynamic programs: micro-batches of even tokens, and buckets charged their longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Cuts:
    """Sorted lengths in consecutive micro-batches, so that the largest sum of tokens is the least; for any number of them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """`lengths` in the order in which they are cut."""
        self._sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        size = len(self._sums)
        # sum of the lengths between two places; what would end before it begins is no micro-batch
        between = self._sums[None, :] - self._sums[:, None]
        self._between = np.where(
            np.arange(size)[:, None] < np.arange(size)[None, :], between, np.iinfo(np.int64).max
        )
        self._largest = [self._between[0]]
        self._first: list[NDArray[np.int64]] = [np.zeros(size, dtype=np.int64)]

    def into(self, count: int) -> list[range]:
        """Places of so many micro-batches, none empty."""
        while len(self._largest) < count:
            largest = np.maximum(self._largest[-1][:, None], self._between)
            self._first.append(largest.argmin(axis=0))
            self._largest.append(largest.min(axis=0))
        found, end = [], len(self._sums) - 1
        for number in reversed(range(count)):
            begin = int(self._first[number][end])
            found.append(range(begin, end))
            end = begin
        return found[::-1]


class Bucket(NamedTuple):
    """Sequences that are charged the length of their longest: places in the sorted lengths."""

    length: int
    places: range


def buckets_of(lengths: Sequence[int], count: int) -> list[Bucket]:
    """At most so many buckets of lengths sorted downwards, charged as few tokens more than there are as can be."""
    values, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    numbers = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.concatenate([[0], np.cumsum(values * counts)])
    size = len(values)
    # a bucket of the values i .. k - 1 charges value k - 1 for all its sequences
    charged = np.concatenate([[0], values])[None, :] * (numbers[None, :] - numbers[:, None])
    error = (charged - (tokens[None, :] - tokens[:, None])).astype(float)
    error[np.tril_indices(size + 1)] = np.inf
    best, firsts = error[0].copy(), [np.zeros(size + 1, dtype=np.int64)]
    for _ in range(min(count, size) - 1):
        sums = best[:, None] + error
        firsts.append(sums.argmin(axis=0))
        best = sums.min(axis=0)
    found, end = [], size
    for first in reversed(firsts):
        begin = int(first[end])
        places = range(len(lengths) - int(numbers[end]), len(lengths) - int(numbers[begin]))
        found.append(Bucket(int(values[end - 1]), places))
        end = begin
    return found


def bucketing_error(lengths: Sequence[int], buckets: Sequence[Bucket]) -> float:
    """Tokens that buckets charge over those there are, less one."""
    return sum(bucket.length * len(bucket.places) for bucket in buckets) / sum(lengths) - 1
