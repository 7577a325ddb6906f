"""Teams along axes: every rank in one of each, members in order of the axes."""

from __future__ import annotations

import pytest

from meshwright.executor.team.rank_team import ranks_along
from meshwright.ir.program import Axis

AXES = (Axis("pp", 2), Axis("dp", 2), Axis("dp2", 2), Axis("tp", 2))


@pytest.mark.parametrize(
    ("names", "first", "num_teams"),
    [
        (("tp",), (0, 1), 8),
        (("dp2",), (0, 2), 8),
        (("dp", "dp2"), (0, 2, 4, 6), 4),
        (("pp", "tp"), (0, 1, 8, 9), 4),
        ((), (0,), 16),
    ],
)
def test_ranks_that_differ_along_axes(names: tuple[str, ...], first: tuple[int, ...], num_teams: int) -> None:
    teams = ranks_along(AXES, names)
    assert teams[0] == first and len(teams) == num_teams
    assert sorted(rank for team in teams for rank in team) == list(range(16))
