"""Which of many cases are always tried: those that together have every pair of choices, or every choice. The others are slow.

What goes wrong in a layout goes wrong for a choice or for two that meet; three that only fail together are looked for
by `make test-all`, which tries all. Where every case starts a job of its own on processes, pairs wait for it as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

SLOW_ARE_TRIED = {"slow": False}  # `tests/conftest.py` says so before tests are collected


def product(factors: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value for each factor."""
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def covering(rows: Sequence[Mapping[str, Any]], together: Literal[1, 2] = 2) -> list[int]:
    """Numbers of rows that together have every pair of values of two factors that any row has, or every value (`together` 1):
    the row with most that are new, again and again (the first of equals)."""
    pairs = _numbered(rows, together)
    is_missing = np.zeros(pairs.max(initial=0) + 1, bool)
    is_missing[pairs] = True
    is_missing[0] = False  # of a factor that a row does not have
    chosen = []
    while is_missing.any():
        best = int(is_missing[pairs].sum(axis=1).argmax())
        chosen.append(best)
        is_missing[pairs[best]] = False
    return chosen


def _numbered(rows: Sequence[Mapping[str, Any]], together: int) -> np.ndarray:
    """[rows, pairs of factors]: a number for the two values that a row has, 0 where it has not both; or for each factor."""
    codes = []
    for factor in sorted({factor for row in rows for factor in row}):
        values = [str(row[factor]) if factor in row else None for row in rows]
        number = {value: i + 1 for i, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
        codes.append(np.array([number.get(value, 0) for value in values]))  # type: ignore[arg-type]
    found, before = [np.zeros(len(rows), int)], 0
    ones = [np.ones(len(rows), int)] if together == 1 else []
    for a, b in itertools.product(codes, ones) if ones else itertools.combinations(codes, 2):
        width = int(b.max()) + 1
        found.append(np.where((a > 0) & (b > 0), before + a * width + b, 0))
        before += (int(a.max()) + 1) * width
    return np.stack(found, axis=1)


def covered(
    cases: Sequence[Any], rows: Sequence[Mapping[str, Any]], together: Literal[1, 2] = 2
) -> list[Any]:
    """The cases as parameters of a test, slow but for a set that has every pair of choices, or every choice (`together` 1);
    `rows`: the choices of each."""
    return always(cases, covering(rows, together))


def always(cases: Sequence[Any], quick: Container[int]) -> list[Any]:
    """The cases as parameters of a test, slow but for those at these places."""
    return [
        pytest.param(
            *case if isinstance(case, tuple) else (case,), marks=() if number in quick else pytest.mark.slow
        )
        for number, case in enumerate(cases)
    ]


def examples(number: int) -> int:
    """Of a searching test: so many with the slow tests, else an eighth."""
    return number if SLOW_ARE_TRIED["slow"] else max(2, number // 8)


def slow_cases(make: Callable[[], list[Any]]) -> list[Any]:
    """Cases of a slow test, made where slow tests run only: finding them takes seconds that every collection would wait."""
    return make() if SLOW_ARE_TRIED["slow"] else []
