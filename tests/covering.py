"""Which of many cases are always tried: those that together have every pair of choices. The others are slow tests.

What goes wrong in a layout goes wrong for a choice or for two that meet; three that only fail together are looked for
by `make test-all`, which tries all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest


def product(factors: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value for each factor."""
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def covering(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of rows that together have every pair of values of two factors that any row has: the row with most pairs that
    are new, again and again (the first of equals)."""
    pairs = [
        {((a, str(row[a])), (b, str(row[b]))) for a, b in itertools.combinations(sorted(row), 2)}
        for row in rows
    ]
    missing = set[Any]().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(pairs[i] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen


def covered(cases: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The cases as parameters of a test, slow but for a set that has every pair of choices; `rows`: the choices of each."""
    quick = set(covering(rows))
    return [
        pytest.param(
            *case if isinstance(case, tuple) else (case,), marks=() if number in quick else pytest.mark.slow
        )
        for number, case in enumerate(cases)
    ]
