"""The CP-SAT model: optima of cases small enough to enumerate, its bound, its hint, and what it says without OR-Tools."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from order_solver import solve_orders

from meshwright.schedules.order import Compute, Orders
from meshwright.schedules.searched.pipeline import KINDS, times_of
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.schedules.searched.zero_bubble_search import search_orders
from meshwright.specs.error import ExecutionError, ScheduleError, SpecError


def rows_of(stages: list[int], m: int, slots: int, done: tuple[int, ...] = ()) -> Iterator[list[Compute]]:
    """Every legal order of a device: F before I before W, at most `slots` activations."""
    held = done or (0,) * (3 * len(stages))
    if sum(held) == 3 * m * len(stages):
        yield []
        return
    alive = sum(held[3 * c] - held[3 * c + 2] for c in range(len(stages)))
    for k, count in enumerate(held):
        before = m if k % 3 == 0 else held[k - 1]
        if count < before and (k % 3 or alive < slots):
            after = (*held[:k], count + 1, *held[k + 1 :])
            for rest in rows_of(stages, m, slots, after):
                yield [Compute(KINDS[k % 3], stages[k // 3], count), *rest]


def best_of_all(times: StageTimes, m: int, cap: float, num_chunks: int, device_time: bool = False) -> float:
    """The smallest span (or device time) of all orders, one by one."""
    p = times.num_stages // num_chunks
    devices = [[d, 2 * p - 1 - d][:num_chunks] for d in range(p)]
    best = float("inf")
    for rows in product(*(list(rows_of(stages, m, int(cap * num_chunks))) for stages in devices)):
        try:
            found = times_of(times, list(rows), num_chunks)
        except ScheduleError:  # these wait for each other
            continue
        best = min(best, found.device_time_s if device_time else found.span_s)
    return best


CASES = [
    (StageTimes((1.0, 0.7), (1.3, 0.4), (0.6, 1.1), 0.3), 3, 2.0, 1),
    (StageTimes((1.0, 0.7), (1.3, 0.4), (0.6, 1.1), 0.0), 3, 3.0, 1),
    (StageTimes((0.5, 1.5, 0.8), (0.9, 0.4, 1.2), (0.2, 0.7, 0.3), 0.2), 2, 1.0, 1),
    (StageTimes((0.5, 1.5, 0.8), (0.9, 0.4, 1.2), (0.2, 0.7, 0.3), 0.2), 2, 2.0, 1),
    (StageTimes((0.5, 1.5), (0.9, 0.4), (0.2, 0.7), 0.2), 2, 1.0, 2),
]


@pytest.mark.parametrize(("times", "m", "cap", "num_chunks"), CASES)
def test_solver_and_heuristic_find_the_best_of_all_orders(
    times: StageTimes, m: int, cap: float, num_chunks: int
) -> None:
    pytest.importorskip("ortools", reason="the solver is the extra `solver`")
    expected = best_of_all(times, m, cap, num_chunks)
    solution = solve_orders(times, m, cap, num_chunks=num_chunks, num_workers=1)
    assert solution.is_optimal
    assert solution.span_s == pytest.approx(expected, rel=1e-9)
    assert solution.bound_s == pytest.approx(expected, rel=1e-9)
    assert max(times_of(times, solution.orders, num_chunks).peaks) <= cap
    ours = times_of(times, search_orders(times, m, cap, num_chunks=num_chunks, effort=0.1), num_chunks)
    assert ours.span_s == pytest.approx(expected, rel=1e-9)


def test_device_time_is_its_own_objective() -> None:
    pytest.importorskip("ortools", reason="the solver is the extra `solver`")
    times = StageTimes((1.0, 0.5), (0.5, 1.0), (0.5, 0.5), 0.0)
    expected = best_of_all(times, 3, 3, 1, device_time=True)
    solution = solve_orders(times, 3, 3, objective="device_time", num_workers=1)
    assert solution.is_optimal and solution.device_time_s >= expected - 1e-9
    assert solution.bound_s <= expected + 1e-9


def test_times_that_share_no_tick_are_rounded_and_still_exact_at_the_end() -> None:
    pytest.importorskip("ortools", reason="the solver is the extra `solver`")
    times = StageTimes((1 / 3, 0.123456789012), (0.7071067811865, 0.2), (0.1, 0.0), 0.01)
    hint = search_orders(times, 3, 2, effort=0.1)
    solution = solve_orders(times, 3, 2, num_workers=1, start_from=hint)
    assert solution.span_s == pytest.approx(best_of_all(times, 3, 2, 1), rel=1e-5)
    assert abs(solution.bound_s - solution.span_s) <= 18 * solution.tick_s


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("ortools"):
            raise ModuleNotFoundError("No module named 'ortools'", name="ortools")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SpecError, match=r"pip install \"meshwright\[solver\]\""):
        solve_orders(StageTimes.uniform(2, 1, 1, 1), 2, 1)


def test_refuses_what_it_cannot_do() -> None:
    times = StageTimes.uniform(2, 1, 1, 1)
    with pytest.raises(SpecError, match="objective 'bubble'; allowed: span or device_time"):
        solve_orders(times, 2, 1, objective="bubble")
    with pytest.raises(SpecError, match="time limit"):
        solve_orders(times, 2, 1, time_limit_s=0)
    pytest.importorskip("ortools", reason="the solver is the extra `solver`")
    waiting: Orders = [[Compute(k, 0, 0) for k in "IFW"], [Compute(k, 1, 0) for k in "FIW"]]
    with pytest.raises(ScheduleError, match="can never run"):
        solve_orders(times, 1, 1, start_from=waiting)
    with pytest.raises(ExecutionError, match="found no order"):
        solve_orders(StageTimes.uniform(16, 1, 1, 1).folded(), 32, 8, num_chunks=2, time_limit_s=0.01)
