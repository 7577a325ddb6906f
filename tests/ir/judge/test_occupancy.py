"""Computing, exchanging, exposed: of intervals that overlap, and the same of a simulated trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.sample import pipeline_trace

from meshwright.ir.judge import metrics
from meshwright.ir.judge.occupancy import occupancies, occupancy, union_s

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12)


def test_what_overlaps_counts_once() -> None:
    found = occupancy(10.0, ([0, 1, 5], [2, 3, 6]), ([2, 2.5], [4, 4]))
    assert (found.compute_s, found.exchange_s, found.exposed_s, found.bubble) == (4.0, 2.0, 1.0, 0.6)


@given(computes=intervals, exchanges=intervals)
def test_union_is_what_counting_seconds_says(
    computes: list[tuple[int, int]], exchanges: list[tuple[int, int]]
) -> None:
    def seconds(rows: list[tuple[int, int]]) -> set[int]:
        return {at for start, length in rows for at in range(start, start + length)}

    def ends(rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        return [start for start, _ in rows], [start + length for start, length in rows]

    found = occupancy(50.0, ends(computes), ends(exchanges))
    assert found.compute_s == len(seconds(computes)) and found.exchange_s == len(seconds(exchanges))
    assert found.exposed_s == len(seconds(exchanges) - seconds(computes))


def test_a_trace_idles_as_its_bubble_says() -> None:
    trace = pipeline_trace()
    span = metrics.span_s(trace)
    found = occupancies(trace, span)
    assert np.mean([each.bubble for each in found]) == pytest.approx(metrics.bubble(trace))
    assert union_s(np.empty(0), np.empty(0)) == 0.0
