"""Drift: told once, with the name that is the cause, and not where nothing drifts."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import api
from meshwright.api.trainings.drift import WINDOW, Drift, DriftWatch
from meshwright.executor.job.gather import Iteration

PREDICTED = api.simulate("1f1b", stages=2, microbatches=4)  # F takes 1 s, B takes 2 s
STEP_S = float(PREDICTED.end_s.max())
USUAL = {"F": 4.0, "B": 8.0}


def iteration(number: int, seconds: float = STEP_S, **fields: Any) -> Iteration:
    spent: dict[str, Any] = {
        "computes": {0: USUAL, 1: USUAL},
        "waits": {0: {"RECV_B": 3.0}, 1: {"RECV_F": 3.0}},
    }
    return Iteration(number, 5.0, 1.0, 100, seconds, 0.0, **{**spent, **fields})


def told(*runs: tuple[int, dict[str, Any]]) -> list[Drift]:
    watch, number, found = DriftWatch(PREDICTED, STEP_S, PREDICTED.program), 0, []
    for count, fields in runs:
        for _ in range(count):
            one = watch.see(iteration(number, **fields))
            found += [] if one is None else [one]
            number += 1
    return found


def test_what_is_as_predicted_is_not_told() -> None:
    assert told((3 * WINDOW, {})) == []
    assert told((3 * WINDOW, {"seconds": 1.2 * STEP_S})) == []


def test_a_slow_compute_is_named_although_the_others_wait_longer() -> None:
    slow = {"F": 4.0, "B": 24.0}
    fields = {"seconds": STEP_S + 16, "computes": {0: USUAL, 1: slow}, "waits": {0: {"RECV_B": 19.0}, 1: {}}}
    (found,) = told((3 * WINDOW, fields))
    assert (found.name, found.rank, found.is_waiting) == ("B", 1, False)
    assert found.name_s == 24.0 and found.predicted_name_s == pytest.approx(8.0)
    assert "B on rank 1" in str(found) and "waiting" not in str(found)


def test_a_slow_link_is_what_is_waited_for() -> None:
    fields = {"seconds": STEP_S + 16, "waits": {0: {"RECV_B": 5.0}, 1: {"RECV_F": 18.0, "RECV_B": 1.0}}}
    (found,) = told((3 * WINDOW, fields))
    assert (found.name, found.rank, found.is_waiting) == ("RECV_F", 1, True)
    assert "waiting for RECV_F on rank 1" in str(found)


def test_the_first_iteration_and_single_ones_do_not_count() -> None:
    assert told((1, {"seconds": 100 * STEP_S}), (WINDOW, {})) == []
    assert told((WINDOW, {}), (WINDOW // 2 - 1, {"seconds": 100 * STEP_S}), (WINDOW, {})) == []


def test_it_is_told_again_when_it_gets_much_worse() -> None:
    slow = [
        {"seconds": factor * STEP_S, "waits": {0: {"RECV_B": factor}, 1: {}}} for factor in (2.0, 2.2, 3.2)
    ]
    assert [round(one.step_s / STEP_S, 1) for one in told(*((2 * WINDOW, fields) for fields in slow))] == [
        2.0,
        3.2,
    ]


def test_without_seconds_by_name_nothing_is_told() -> None:
    assert told((2 * WINDOW, {"seconds": 3 * STEP_S, "computes": {}, "waits": {}})) == []
