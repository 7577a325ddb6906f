"""Where the host's seconds of an iteration went: computes by name, and waiting for asynchronous rows by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.rank.rank_list import RankList
from meshwright.executor.rank.stream.row_times import Times
from meshwright.ir.table import Kind


class Spent(NamedTuple):
    """Seconds by name: of computes, and that the host waited for others to complete."""

    computes: dict[str, float]
    waits: dict[str, float]


class SecondsByName:
    """Sums of one rank's list, made after every iteration: in numpy, below 1 us a row."""

    def __init__(self, ranked: RankList) -> None:
        names = [step.row.name for step in ranked.steps]
        self._names = list(dict.fromkeys(names))
        self._name_of_row = np.array([self._names.index(name) for name in names], dtype=np.int64)
        self._is_compute = np.array([step.row.kind == Kind.COMPUTE for step in ranked.steps], dtype=bool)

    def of(self, times: Times, waited_s: Sequence[float]) -> Spent:
        """Of an iteration that has just ended; its exchanges may still be under way, its computes are done."""
        length = np.where(self._is_compute, np.array(times.end) - np.array(times.start), 0.0)
        return Spent(self._sums(length), self._sums(np.array(waited_s)))

    def _sums(self, seconds: NDArray[np.float64]) -> dict[str, float]:
        sums = np.bincount(self._name_of_row, weights=seconds, minlength=len(self._names))
        return {name: round(total, 9) for name, total in zip(self._names, sums.tolist()) if total > 0.0}
