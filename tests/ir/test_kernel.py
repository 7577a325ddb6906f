"""The two ways to run a kernel: plain for what is small, compiled for what is large or comes often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwright.ir import kernel
from meshwright.ir.kernel import call

LIMIT = 10  # rows of a small program in these tests


def squares(numbers: Any, found: Any) -> int:
    """Kernel: the square of every number."""
    for i in range(len(numbers)):
        found[i] = numbers[i] * numbers[i]
    return len(numbers)


@pytest.fixture
def num_compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., int]]:
    """Kernels that were run compiled, in their order; here "compiled" is the same Python."""
    asked: list[Callable[..., int]] = []

    def compiled(given: Callable[..., int]) -> Callable[..., int]:
        asked.append(given)
        return given

    monkeypatch.setattr(kernel, "SMALL_ROWS", LIMIT)
    monkeypatch.setattr(kernel, "_plain_rows", Counter())
    monkeypatch.setattr(kernel, "compiled", compiled)
    return asked


def run(num_rows: int) -> list[int]:
    found = np.zeros(3, dtype=np.int64)
    assert call(squares, num_rows, [np.array([1, 2, 3])], [found]) == 3
    return [int(number) for number in found]


def test_large_programs_run_compiled_and_small_ones_do_not(num_compiled: list[Any]) -> None:
    assert run(LIMIT) == [1, 4, 9] and num_compiled == []
    assert run(LIMIT + 1) == [1, 4, 9] and num_compiled == [squares]


def test_after_many_small_programs_all_run_compiled(num_compiled: list[Any]) -> None:
    for _ in range(kernel.MANY_PROGRAMS + 1):
        run(LIMIT)
    assert num_compiled == []
    assert run(1) == [1, 4, 9] and num_compiled == [squares]


def test_compiled_fills_the_same_arrays() -> None:
    found = np.zeros(4, dtype=np.int64)
    assert kernel.compiled(squares)(np.arange(4), found) == 4
    assert found.tolist() == [0, 1, 4, 9]
