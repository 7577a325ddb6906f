"""Sums in one kernel: constants are those of the published rows, and NCCL keeps what it does sooner, or alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.collective.one_shot import HOP_S, LINK_SHARE, START_S, OneShotSums
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster

# Microseconds by devices, from 256 bytes, each twice as large as the one before: the table that `one_shot` names, up to where
# the kernel is another one.
ROWS_US = {
    2: (3.0155, 3.0770, 3.3185, 3.3162, 3.2562, 3.2495, 3.5539, 3.4056, 3.5363, 3.6921, 4.3139, 4.9436, 6.6231),
    4: (3.6201, 3.1906, 3.4530, 3.5971, 3.6356, 3.5452, 3.6406, 3.7946, 4.0448, 4.5904, 5.8603, 8.3743, 13.2303),
}  # fmt: skip
ROWS = [
    (devices, 256 * 2**step, 1e-6 * us) for devices, found in ROWS_US.items() for step, us in enumerate(found)
]
SUM, GATHER = (Exchange(("tp",), algorithm=name) for name in ("all_reduce", "all_gather"))


def sums(cluster: str | ClusterSpec = "2x8xH100") -> OneShotSums:
    return OneShotSums(NcclCollectives(cluster if isinstance(cluster, ClusterSpec) else Cluster(cluster)))


def seconds(
    costs: OneShotSums | NcclCollectives, num_bytes: float, num_devices: int, exchange: Exchange = SUM
) -> float:
    return costs.exchange_cost(exchange, num_bytes, tuple(range(num_devices))).seconds


def test_the_constants_are_those_of_the_published_rows() -> None:
    """Least squares of logarithms; every row is met within 15 %, all within 4 % in the root of the mean square."""
    devices, size, measured = np.array(ROWS).T
    peers, link = devices - 1, Cluster("1x8xH100").levels[0].bandwidth_bytes_per_s

    def off(constants: np.ndarray) -> np.ndarray:
        start, hop, share = constants
        return np.log((1e-6 * (start + hop * peers) + peers * size / (share * link)) / measured)

    given = np.array([1e6 * START_S, 1e6 * HOP_S, LINK_SHARE])
    found = least_squares(off, [1.0, 1.0, 0.5], bounds=(0, [20, 5, 1])).x
    assert found == pytest.approx(given, rel=0.02, abs=0.02)
    assert np.sqrt(np.mean(off(given) ** 2)) < 0.04 and np.abs(off(given)).max() < 0.15


@pytest.mark.parametrize(("num_devices", "num_bytes", "measured_s"), ROWS[::4])
def test_small_sums_of_a_node_take_what_was_measured(
    num_devices: int, num_bytes: int, measured_s: float
) -> None:
    """On the chip of the table; less than NCCL takes."""
    own = sums()
    assert seconds(own, num_bytes, num_devices) == pytest.approx(measured_s, rel=0.15)
    assert seconds(own, num_bytes, num_devices) < seconds(own.links, num_bytes, num_devices)


def test_large_sums_and_all_else_are_nccls() -> None:
    """Beyond some MB; what is gathered; what leaves the node; where there is no switch."""
    own, both = sums(), (0, 8)
    assert seconds(own, 64 << 20, 8) == seconds(own.links, 64 << 20, 8)
    assert seconds(own, 4096, 8, GATHER) == seconds(own.links, 4096, 8, GATHER)
    assert own.exchange_cost(SUM, 4096, both) == own.links.exchange_cost(SUM, 4096, both)
    assert own.flows(SUM, 4096, both) == own.links.flows(SUM, 4096, both)
    pairs = sums("1x8xMI300X")
    assert seconds(pairs, 4096, 8) == seconds(pairs.links, 4096, 8)
    assert seconds(own, 4096, 1) == 0.0


def test_a_slower_link_takes_longer_and_none_is_better_known_than_extrapolated() -> None:
    """An A100's has two thirds of an H100's bytes a second."""
    fast, slow = sums("1x8xH100"), sums("1x8xA100")
    sent_s = [seconds(each, 1 << 18, 4) - START_S - 3 * HOP_S for each in (slow, fast)]
    assert sent_s[0] / sent_s[1] == pytest.approx(1.5, rel=0.01)
    assert fast.exchange_cost(SUM, 4096, (0, 1)).basis == "extrapolated"
    narrow = Cluster("1x8xH100")
    bus = replace(narrow, levels=(replace(narrow.levels[0], is_shared=True),))
    assert seconds(sums(bus), 4096, 8) == seconds(NcclCollectives(bus), 4096, 8)
