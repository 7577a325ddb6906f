"""Fits the network of Amazon's EFA on published runs of NCCL's tests, and writes it into the package's profile.

    python -m benchmarks.fit.fit_efa

The nodes are p5.48xlarge: eight H100, and for each of them four EFA of 100 Gb/s. Fitted are the sizes at even places, the
others give the spread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

from meshwright.costs.collective.curve import NetworkCurve, NodeCurve, Span, across_nodes_ways, fastest
from meshwright.costs.collective.profile import NetworkCollectives, packaged_profile

from .collective_constant import NETWORK_CONSTANTS, fit_constants
from .packaged_collectives import network_curve, spread_of, warn_of_edges, write_part

SOURCE = "aws-gpu-communication-benchmark (NCCL on EFA)"
CHIP, FABRIC = "H100", "efa"
PER_NODE, NIC_BYTES_PER_S = 8, 50e9  # 3,200 Gb/s a node (Amazon's table of instances)
LEAST_MEBIBYTES, MEBI = 32, 1 << 20
# GB/s (bytes of the whole tensor over seconds, out of place), of 32 MiB and each doubling; by operation and number of nodes.
# crazyguitar/aws-gpu-communication-benchmark @fd167f9, data/nccl_*.csv.
GB_PER_S: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "all_gather": {
        2: (140.06, 213.8, 250.18, 229.95, 293.89, 343.47, 350.49),
        4: (86.25, 143.42, 218.56, 261.53, 227.68, 297.83, 341.59),
        8: (47.03, 88.17, 145.94, 218.84, 265.41, 228.04, 298.37),
        16: (25.1, 47.36, 88.37, 145.18, 221.71, 263.94, 267.24),
        32: (12.43, 25.06, 45.83, 86.63, 146.96, 223.27, 263.8),
    },
    "all_reduce": {
        2: (78.57, 110.4, 162.74, 194.38, 211.2, 232.08, 237.36, 248.43, 254.78),
        4: (49.23, 78.66, 118.44, 141.08, 143.7, 144.67, 179.39, 182.94, 184.25),
        8: (44.06, 52.75, 79.4, 117.88, 138.48, 139.41, 141.28, 178.45, 180.5),
        16: (37.72, 46.56, 65.11, 74.64, 112.78, 135.67, 136.52, 154.28, 179.54),
        32: (33.3, 41.97, 58.12, 69.26, 78.73, 110.47, 135.26, 152, 161.18),
    },
    "all_to_all": {
        2: (47.78, 66.3, 73.38, 79.21, 80.87, 82.91, 84.53),
        4: (35.56, 44.53, 54.26, 56.03, 55.57, 55.49, 55.82),
        8: (29.13, 35.24, 36.77, 45.11, 47.31, 49.08, 50.41),
        16: (24.83, 26.29, 31.69, 35.04, 40.39, 42.7, 44.58),
        32: (19.79, 23.01, 27.13, 30.32, 33.19, 38.83, 40.94),
    },
}


class EfaRow(NamedTuple):
    """One published collective: nodes of eight, bytes of the whole tensor, seconds, and its place among the sizes."""

    operation: str
    num_nodes: int
    num_bytes: float
    seconds: float
    place: int


def rows() -> tuple[EfaRow, ...]:
    """All of them."""
    found = []
    for operation, by_nodes in GB_PER_S.items():
        for num_nodes, rates in by_nodes.items():
            for place, rate in enumerate(rates):
                num_bytes = float(LEAST_MEBIBYTES * MEBI << place)
                found.append(EfaRow(operation, num_nodes, num_bytes, num_bytes / (rate * 1e9), place))
    return tuple(found)


def fitted_network(node: NodeCurve) -> NetworkCollectives:
    """The curve between nodes whose inside is `node`, and its spread on rows that were not fitted."""
    known = rows()

    def residuals(values: Mapping[str, float]) -> list[float]:
        network = network_curve(values)
        return [math.log(seconds(node, network, row) / row.seconds) for row in known if row.place % 2 == 0]

    fit = fit_constants(NETWORK_CONSTANTS, residuals)
    warn_of_edges(FABRIC, fit)
    network = network_curve(fit.values)
    errors = (seconds(node, network, row) / row.seconds - 1 for row in known if row.place % 2)
    return NetworkCollectives(network, spread_of(errors))


def seconds(node: NodeCurve, network: NetworkCurve, row: EfaRow) -> float:
    """What these curves say of a row."""
    span = Span(row.num_nodes, PER_NODE, NIC_BYTES_PER_S, PER_NODE * NIC_BYTES_PER_S)
    return fastest(across_nodes_ways(node, network, row.operation, row.num_bytes, span)).seconds


def main() -> int:
    """Write the network into the package's profile; 0 when done."""
    write_part("networks", FABRIC, fitted_network(packaged_profile().chips[CHIP].curve), SOURCE)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    raise SystemExit(main())
