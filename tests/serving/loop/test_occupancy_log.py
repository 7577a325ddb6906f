"""What is noted of how full a replica is agrees with what became of its requests."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.serving.simulated_case import load, table

from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.occupancy_log import OccupancyLog
from meshwright.serving.policy.limits import Limits

BLOCKS, LIMITS = 60, Limits(128, 32, 512)


def area(log: OccupancyLog, name: str) -> float:
    """Under the line of its numbers."""
    spans = [after - before for before, after in pairwise(log.time_s)]
    return sum(span * number for span, number in zip(spans, getattr(log, name)))


@pytest.mark.parametrize("per_s", [0.5, 200.0])
@pytest.mark.parametrize("is_routed", [False, True])
def test_those_who_run_are_those_who_have_begun_and_not_ended(per_s: float, is_routed: bool) -> None:
    """With long times in which nobody is there, and with blocks that run out."""
    replica = SimulatedReplica(table(), BLOCKS, 16, LIMITS, is_watched=True)
    requests = load(40, per_s)
    if is_routed:
        for request in requests:
            replica.advance(request.arrival_s)
            replica.give(request)
        replica.advance(float("inf"))
    else:
        replica.serve(RecordedArrivals(requests))
    log, records = replica.occupancy, replica.log.records
    assert all(before <= after for before, after in pairwise(log.time_s))
    assert 0 <= min(log.num_waiting) and 0 < max(log.num_held) <= BLOCKS
    if per_s < 1:
        assert area(log, "num_running") == pytest.approx(sum(each.end_s - each.begun_s for each in records))
        assert min(log.num_running) == min(log.num_held) == 0
    else:
        assert max(log.num_waiting) > 0 and max(log.num_held) >= BLOCKS - 1
