"""Which rows the host runs in place of their stream: those that it would hand over only to wait for them."""

from __future__ import annotations

import pytest

from meshwright.executor.rank.inline_rows import Lane, rows_run_inline

HOST, GATHER, REDUCE = Lane("", 0), Lane("gather", 0), Lane("reduce", 0)


@pytest.mark.parametrize(
    ("lanes", "waits", "inline"),
    [
        pytest.param([HOST, GATHER, HOST], {2: [(1, 0)]}, [False, True, False], id="the next row waits"),
        pytest.param(
            [GATHER, REDUCE, HOST, HOST],
            {2: [(1, 0)], 3: [(0, 0)]},
            [False, True, False, False],
            id="a compute, or another exchange, may overlap",
        ),
        pytest.param([GATHER, GATHER, GATHER, HOST], {3: [(0, 0), (1, 0), (2, 0)]}, [True] * 3 + [False], id="run"),
        pytest.param(
            [GATHER, REDUCE, GATHER, HOST],
            {3: [(0, 0), (1, 0), (2, 0)]},
            [False] * 4,
            id="a run is broken by another stream: behind it its stream is not idle",
        ),
        pytest.param(
            [GATHER, HOST, GATHER, HOST],
            {3: [(0, 0), (2, 0)]},
            [False] * 4,
            id="the row before it in its stream may be under way",
        ),
        pytest.param(
            [GATHER, HOST, HOST, GATHER, HOST],
            {2: [(0, 0)], 4: [(3, 0)]},
            [False, False, False, True, False],
            id="the row before it has been waited for",
        ),
        pytest.param(
            [GATHER, HOST, GATHER],
            {1: [(0, 0)]},
            [False] * 3,
            id="the last row of the iteration before may be under way",
        ),
        pytest.param(
            [GATHER, HOST, GATHER],
            {0: [(2, 1)], 1: [(0, 0)]},
            [True, False, False],
            id="that of the iteration before has been waited for",
        ),
        pytest.param(
            [GATHER, HOST, HOST, GATHER],
            {1: [(0, 0)], 2: [(3, 1)]},
            [False] * 4,
            id="that of the iteration before is waited for too late",
        ),
        pytest.param(
            [Lane("ring", 1), Lane("ring", 1), HOST], {2: [(0, 0), (1, 0)]}, [False] * 3, id="a batch is posted together"
        ),
        pytest.param(
            [Lane("ring", 1), Lane("ring", 1), HOST, Lane("ring", 0), HOST],
            {2: [(0, 0)], 4: [(3, 0)]},
            [False] * 5,
            id="a member of the batch before may be under way",
        ),
        pytest.param(
            [Lane("ring", 1), Lane("ring", 1), HOST, Lane("ring", 0), HOST],
            {2: [(0, 0), (1, 0)], 4: [(3, 0)]},
            [False] * 3 + [True, False],
            id="all members of the batch before have ended",
        ),
        pytest.param([HOST, GATHER], {}, [False] * 2, id="nobody waits"),
        pytest.param([GATHER, HOST], {1: [(0, 1)]}, [False] * 2, id="the next row waits for the one before"),
    ],
)  # fmt: skip
def test_what_the_host_runs(
    lanes: list[Lane], waits: dict[int, list[tuple[int, int]]], inline: list[bool]
) -> None:
    assert rows_run_inline(lanes, waits) == inline
