"""distinct, Answers: candidates that agree in what decides an answer have one, and no part of a space asks for it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Answer = TypeVar("Answer")
MOST_CODES = 4_000_000  # combinations that are counted by their place; more of them are sorted


def distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Number of every row's combination, and the first row of each."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        top = int(column.max()) + 1
        if top * (int(code.max()) + 1) > MOST_CODES:  # then only those that occur are numbered
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        if top * (int(code.max()) + 1) > MOST_CODES:
            values, column = np.unique(column, return_inverse=True)
            column, top = column.reshape(-1), len(values)
        code = code * top + column
    if int(code.max()) < MOST_CODES:  # dense enough to count
        number = np.full(int(code.max()) + 1, -1, dtype=np.int64)
        number[code[::-1]] = np.arange(len(code) - 1, -1, -1)
        first = number[number >= 0]
        number[number >= 0] = np.arange(len(first))
        return number[code], first
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return inverse.reshape(-1), first


class Answers(Generic[Answer]):
    """Answers by the values of the columns that decide them, of all parts of a space that asked."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Answer] = {}

    def of(self, columns: Sequence[Ints], rows: Ints, ask: Callable[[int], Answer]) -> list[Answer]:
        """The answer of each of these rows; `ask`: of a row whose values are new."""
        keys = list(zip(*(column[rows].tolist() for column in columns), strict=True))
        for key, row in zip(keys, rows.tolist(), strict=True):
            if key not in self._known:
                self._known[key] = ask(row)
        return [self._known[key] for key in keys]
