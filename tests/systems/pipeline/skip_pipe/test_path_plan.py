"""Path plans: places of a node, times of injection, and who waits for whom."""

from __future__ import annotations

from meshwright.systems.pipeline.skip_pipe.arrival_dispatch import Injection
from meshwright.systems.pipeline.skip_pipe.path_plan import PathPlan, repeated

PATHS = ((0, 2), (1, 2), (0, 3))


def test_places_count_paths_of_one_node() -> None:
    assert PathPlan(PATHS, 1.0).places() == (0, 0, 1)


def test_rounds_follow_one_another_and_wait_for_the_first() -> None:
    plan = PathPlan(PATHS, spacing_s=0.5, num_rounds=2, round_s=3.0)
    assert plan.injections() == (
        Injection((0, 2), 0.0),
        Injection((0, 2), 3.0, opener=0),
        Injection((1, 2), 0.0),
        Injection((1, 2), 3.0, opener=2),
        Injection((0, 3), 0.5),
        Injection((0, 3), 3.5, opener=4),
    )


def test_repeated_paths_stand_together() -> None:
    assert repeated(PATHS, 2) == ((0, 2), (0, 2), (1, 2), (1, 2), (0, 3), (0, 3))
