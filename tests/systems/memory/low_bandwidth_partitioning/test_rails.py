"""Rings on rails: every level at the rate of all links that leave a unit, each of which carries its part of the bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.costs.roofline import LINK_EFFICIENCY
from meshwright.ir.table import Exchange
from meshwright.systems.memory.low_bandwidth_partitioning.card import frontier
from meshwright.systems.memory.low_bandwidth_partitioning.rails import Rails

GATHER = Exchange(("node", "package", "gcd"), algorithm="all_gather")
LARGE_BYTES = 1e12
JITTER = 0.0453  # of A100 in the package


@pytest.mark.parametrize(
    ("devices", "bytes_per_s"),
    [
        ((0, 1), 200e9),  # one link
        (tuple(range(8)), 100e9),  # two links leave a package
        (tuple(range(32)), 100e9),  # eight NICs of 12.5 leave a node
        ((0, 8, 16), 12.5e9),  # one does
    ],
)
def test_a_gather_runs_at_the_slowest_level_and_waits_for_the_slowest_node(
    devices: tuple[int, ...], bytes_per_s: float
) -> None:
    seconds = Rails(frontier(32)).exchange_cost(GATHER, LARGE_BYTES, devices).seconds
    n = len(devices)
    nodes = len({device // 8 for device in devices})
    waiting = 1 + JITTER * (nodes**0.5 - 1)
    wanted = (n - 1) / n * LARGE_BYTES / (LINK_EFFICIENCY * bytes_per_s) * waiting
    assert seconds == pytest.approx(wanted, rel=1e-3)


def test_flows_leave_a_unit_by_all_its_members_and_none_takes_more_than_its_link() -> None:
    cluster, devices = frontier(16), tuple(range(16))
    model = Rails(cluster)
    seconds = model.exchange_cost(GATHER, LARGE_BYTES, devices).seconds
    load: Counter[str] = Counter()
    for flow in model.flows(GATHER, LARGE_BYTES, devices):
        if flow.source // 8 != flow.target // 8:
            assert flow.source % 8 == flow.target % 8  # the same place of the next node
            load[cluster.path(flow.source, flow.target)[0].group] += int(flow.bytes)
    assert len(load) == 16 and max(load.values()) / 12.5e9 <= seconds


def test_nobody_sends_where_there_is_nobody_else() -> None:
    model = Rails(frontier(16))
    assert model.exchange_cost(GATHER, 1e6, (3,)).seconds == 0 and not model.flows(GATHER, 1e6, (3,))
