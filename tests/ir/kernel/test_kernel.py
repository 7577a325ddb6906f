"""The two ways to run a kernel: plain for what is small, compiled for what is large or comes often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from meshwright.ir.kernel import kernel
from meshwright.ir.kernel.kernel import call, part

LIMIT = 10  # rows of a small program in these tests


def squares(numbers: Any, found: Any) -> int:
    """Kernel: the square of every number."""
    for i in range(len(numbers)):
        found[i] = numbers[i] * numbers[i]
    return len(numbers)


@pytest.fixture
def num_compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., int]]:
    """Kernels that were compiled, in their order; here what is "compiled" is the same Python, and nothing is kept."""
    asked: list[Callable[..., int]] = []

    def make(given: Callable[..., int], *_: Any) -> SimpleNamespace:
        asked.append(given)
        return SimpleNamespace(run=lambda args: given(*args))

    monkeypatch.setattr(kernel, "SMALL_ROWS", LIMIT)
    monkeypatch.setattr(kernel, "_plain_rows", Counter())
    monkeypatch.setattr(kernel, "_codes", {})
    monkeypatch.setattr(kernel, "load", lambda *_: None)
    monkeypatch.setattr(kernel, "make", make)
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


def test_what_was_compiled_before_is_loaded_for_fewer_rows(
    num_compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []

    def load(given: Any, *_: Any) -> Any:
        loaded.append(given)
        return SimpleNamespace(run=lambda args: given(*args))

    monkeypatch.setattr(kernel, "load", load)
    monkeypatch.setattr(kernel, "SMALL_ROWS", LIMIT * kernel.LOADING)
    assert run(LIMIT) == [1, 4, 9] and loaded == []
    assert run(LIMIT + 1) == [1, 4, 9] and loaded == [squares]
    assert run(LIMIT + 1) == [1, 4, 9] and loaded == [squares], "once a process"
    assert num_compiled == []


class Tally(NamedTuple):
    """A counter and what was counted, as kernels take them: arrays in a named tuple."""

    step: int
    counts: Any


@part
def count_up(tally: Any, place: int) -> None:
    """Part of a kernel."""
    tally.counts[place] += tally.step


def count_all(tally: Any, found: Any) -> int:
    """Kernel: counts every place, by its part; the counts of its input are nobody else's."""
    for place in range(len(found.counts)):
        count_up(found, place)
        count_up(found, place)
    return len(tally.counts)


@pytest.mark.parametrize("num_rows", [LIMIT, LIMIT + 1])
def test_kernels_have_parts_and_take_named_tuples(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SMALL_ROWS", LIMIT)
    monkeypatch.setattr(kernel, "_plain_rows", Counter())
    given, found = Tally(1, np.zeros(2, dtype=np.int64)), Tally(3, np.zeros(4, dtype=np.int64))
    assert call(count_all, num_rows, [given], [found]) == 2
    assert found.counts.tolist() == [6, 6, 6, 6] and found.step == 3
    assert count_all.__globals__["count_up"] is count_up, "who calls the kernel as Python calls Python"
