"""What is expected of candidates after some were simulated: the form times how far it was off for their like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.planner.search.expectation import HOPE, HOPE_OF_SCHEDULE, Expectation

#                   schedule, devices, chunks, closed form
CANDIDATES = [(0, 4, 1, 1.00), (0, 4, 1, 1.05), (1, 4, 2, 1.10), (1, 4, 2, 1.15), (1, 8, 2, 1.20)]  # fmt: skip


def expectation() -> Expectation:
    schedule, pp, chunks, step_s = (np.array(column) for column in zip(*CANDIDATES, strict=True))
    space: Any = SimpleNamespace(schedule=schedule, pp=pp, num_chunks=chunks)
    return Expectation(space, step_s, np.argsort(step_s))


def test_without_news_the_order_is_the_forms() -> None:
    assert list(expectation()) == [0, 1, 2, 3, 4]


def test_a_form_that_was_too_slow_for_a_schedule_is_believed_less_there() -> None:
    order, given, seconds = expectation(), [], {0: 1.0, 1: 1.05, 2: 0.88, 3: 0.92, 4: 0.9}
    for number in order:
        given.append((number, order.next_s))
        order.tell(seconds[number])
    numbers = [number for number, _ in given]
    # 1 takes what the form says, being like 0; 2 is hoped to be a little faster, and was a fifth, so its like come first
    assert numbers == [0, 1, 2, 3, 4] and given[1][1] == pytest.approx(1.05)
    assert given[2][1] == pytest.approx(HOPE * 1.10)
    assert given[3][1] == pytest.approx(0.8 * 1.15)
    assert given[4][1] == pytest.approx(HOPE_OF_SCHEDULE * 0.8 * 1.20)


def test_one_of_every_kind_is_tried_before_all_of_a_kind_are_given_up() -> None:
    order, given = expectation(), []
    for number in order:
        given.append(number)
        order.tell(2.0 if CANDIDATES[number][0] == 0 else 1.0)
    assert given == [0, 2, 3, 4, 1]
