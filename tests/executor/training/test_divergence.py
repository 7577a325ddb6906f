"""A training whose numbers have become none ends, and says in which step."""

from __future__ import annotations

import math

import pytest
from tests.covering import always
from tests.planned_case import Planned

from meshwright.executor.job.pool import Pool
from meshwright.executor.training.divergence import MOST_SKIPPED, Divergence
from meshwright.specs.error import ExecutionError

TOO_MUCH = 1e30  # a learning rate: after one step of it nothing is a number any more


def test_finite_sums_are_no_concern() -> None:
    watch = Divergence()
    for iteration in range(3 * MOST_SKIPPED):
        watch.see(iteration, {"loss": 2.0, "squared_norm": 1e30, "num_undone": 1})
    watch.see(0, {})  # a program that trains nothing


@pytest.mark.parametrize("name", ["loss", "squared_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_on_what_is_no_number_cannot_be_mended(name: str, value: float) -> None:
    sums = {"loss": 2.0, "squared_norm": 1.0, "num_undone": 0} | {name: value}
    with pytest.raises(ExecutionError, match="in step 8 ") as caught:
        Divergence(first_step=5).see(2, sums)
    assert "the newest checkpoint" in str(caught.value)


def test_skipped_steps_may_come_but_not_for_ever() -> None:
    watch, skipped = Divergence(), {"loss": math.nan, "squared_norm": math.nan, "num_undone": 1}
    for _ in range(3):
        for iteration in range(MOST_SKIPPED - 1):
            watch.see(iteration, skipped)
        watch.see(0, {"loss": 2.0, "squared_norm": 1.0, "num_undone": 0})
    for iteration in range(MOST_SKIPPED - 1):
        watch.see(iteration, skipped)
    with pytest.raises(ExecutionError, match=f"as {MOST_SKIPPED} times before it"):
        watch.see(0, skipped)


def test_where_the_norm_is_known_steps_are_skipped_and_counted(own_pool: Pool) -> None:
    result = Planned(learning_rate=TOO_MUCH, clip=1.0, choices={"pp": 2}).run(own_pool, 4)
    undone = [iteration.num_undone for iteration in result.iterations]
    assert undone[0] == 0 and undone[-1] > 0


@pytest.mark.parametrize("choices", always([{"pp": 2}, {"dp": 2, "sharding": "zero3"}], {0}), ids=str)
def test_a_training_that_has_diverged_ends(choices: dict[str, object], own_pool: Pool) -> None:
    case = Planned(learning_rate=TOO_MUCH, choices=choices)
    with pytest.raises(ExecutionError, match=r"in step [23] (the loss|a gradient) is"):
        case.run(own_pool, 5)
