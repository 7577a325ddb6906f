"""Lines over time are sums of what replicas had at each moment."""

from __future__ import annotations

from meshwright.planner.serving.served_plan import ServedPlan
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.occupancy_log import OccupancyLog
from meshwright.serving.loop.report import LatencyObjective, LoadReport
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.cluster.source import Cluster
from meshwright.workbench.document.served.layout import against_load_sections, occupancy_sections

NOBODY = ServedPlan(
    ServingPlan(ReplicaLayout(), 2), LoadReport.of([]), 100, Cluster("1xH100").devices[0], 0.0
)


def log(times_s: list[float], held: list[int]) -> OccupancyLog:
    scheduler = Scheduler(ContinuousBatching(), BlockPool(100, 16), Limits())
    return OccupancyLog(scheduler, times_s, [1] * len(held), [0] * len(held), held)


def test_replicas_are_summed_as_they_were_at_each_moment() -> None:
    """The second begins later and ends sooner; of two entries at one moment the later holds."""
    logs = [log([0.0, 4.0, 4.0, 10.0], [10, 30, 20, 20]), log([2.0, 6.0], [5, 7])]
    _, blocks = occupancy_sections(logs, NOBODY)
    held, there = blocks.lines
    at, total = held.x.values, held.y.values
    assert (at[0], at[-1]) == (0.0, 10.0)
    for first, last, expected in ((0, 2, 10), (2, 4, 15), (4, 6, 25), (6.1, 10, 20)):
        assert set(total[(at >= first) & (at < last)]) == {expected}
    assert set(there.y.values) == {200.0}


def test_replicas_that_served_nobody_have_no_lines() -> None:
    assert occupancy_sections([log([], [])], NOBODY) == []


def test_what_nobody_finished_is_no_point() -> None:
    (chart,) = against_load_sections([(1.0, NOBODY), (2.0, NOBODY)], LatencyObjective(ttft_s=2.0))
    (line,) = chart.lines
    assert line.label == "objective" and "none of these" in chart.note
    assert line.x.values.tolist() == [1.0, 2.0] and line.y.values.tolist() == [2.0, 2.0]
