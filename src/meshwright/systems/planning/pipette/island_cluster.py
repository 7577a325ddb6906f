"""Synthetic links to place nodes on: eight nodes in two fast islands, as a matrix and as a cluster, or uneven links."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import Link
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import UnknownNameError

LINKS = ("islands", "uneven")
FAST_BYTES_PER_S, SLOW_BYTES_PER_S = 25e9, 2.5e9  # 200 Gb/s, and between islands a tenth
NUM_NODES, ISLAND_OF_NODE = 8, (0, 1, 1, 0, 1, 0, 0, 1)  # nobody numbers nodes by island
UNEVEN_SEED, UNEVEN_SPREAD = 7, 4.0  # rates of single links, from the fast one down to a quarter


def link_rates(links: str) -> tuple[tuple[float, ...], ...]:
    """Rates between the claims' nodes: two "islands", or "uneven" ones of any rate. Raises UnknownNameError."""
    if links not in LINKS:
        raise UnknownNameError("matrix of link rates", links, LINKS)
    slowdowns = UNEVEN_SPREAD ** np.random.default_rng(UNEVEN_SEED).random((NUM_NODES, NUM_NODES))
    rates = np.full((NUM_NODES, NUM_NODES), FAST_BYTES_PER_S)
    if links == "uneven":
        rates = rates / slowdowns
    else:
        island = np.array(ISLAND_OF_NODE)
        rates[island[:, None] != island] = SLOW_BYTES_PER_S
    np.fill_diagonal(rates, math.inf)
    return tuple(tuple(row) for row in rates.tolist())


@cache
def island_cluster() -> ClusterSpec:
    """Nodes of 8 A100 in two islands: a device reaches its counterparts in the other one at the slow rate."""
    even = Cluster(f"{NUM_NODES}x8xA100-80", nic=FAST_BYTES_PER_S)
    size, rates, latency_s = even.levels[0].num_devices, link_rates("islands"), even.levels[-1].latency_s
    links = tuple(
        Link(f"device {a * size + device}", f"device {b * size + device}", SLOW_BYTES_PER_S, latency_s)
        for a, b in itertools.permutations(range(NUM_NODES), 2)
        for device in range(size)
        if rates[a][b] == SLOW_BYTES_PER_S
    )
    return ClusterSpec("two islands", even.devices, even.levels, links, even.assumptions)
