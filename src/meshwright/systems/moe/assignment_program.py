"""Placement as a mixed-integer linear program, of counts: how large it is does not depend on how many tokens were seen.

x[l, e, g] is 1 where expert e of layer l is on device g; z[l, a, b] >= x[l, a, g] - x[l + 1, b, g] for every g says
that a move from a to b leaves its device, and the sum of M z is made small. Every expert is on one device, and every
device has as many. Its linear relaxation is zero (x = 1 / G everywhere), so solvers prove little: HiGHS is given a
time, and its best is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array

from meshwright.specs.error import SpecError

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Solved(NamedTuple):
    """The best placement [L, E] that was found, the moves that leave their device, and how far apart from the bound
    they are."""

    devices: Numbers
    moved: float
    gap: float


def solved(moves: Floats, num_devices: int, time_limit_s: float) -> Solved:
    """The best placement that HiGHS finds in time, of moves [L - 1, E, E]. Raises SpecError where it finds none."""
    num_layers, num_experts = len(moves) + 1, moves.shape[1]
    num_x = num_layers * num_experts * num_devices
    weights = np.concatenate([np.zeros(num_x), moves.reshape(-1)])
    found = milp(
        weights,
        integrality=np.concatenate([np.ones(num_x), np.zeros(moves.size)]),
        bounds=Bounds(0, 1),
        constraints=[*_counts(num_layers, num_experts, num_devices, moves.size), _moves(moves, num_devices)],
        options={"time_limit": time_limit_s},
    )
    if found.x is None:
        raise SpecError(
            f"no placement of {num_experts} experts in {num_layers} layers in {time_limit_s:g} s",
            allowed="more time, or alternating assignment (program_s=0)",
        )
    devices = found.x[:num_x].reshape(num_layers, num_experts, num_devices).argmax(2)
    gap = float(found.mip_gap) if found.mip_gap is not None else 0.0
    return Solved(devices, float(found.fun), gap)


def balanced_clusters(loads: Floats, num_clusters: int, time_limit_s: float) -> Numbers:
    """Clusters [E] of one layer's experts, as many in each, whose loads differ from the mean by the least sum.

    min sum_c d_c, with d_c >= |load of c - mean|. Raises SpecError where HiGHS finds none in time.
    """
    num_experts, each = len(loads), len(loads) // num_clusters
    num_x, mean = num_experts * num_clusters, loads.sum() / num_clusters
    of_cluster = np.kron(loads, np.eye(num_clusters))  # [C, E C]: load of each
    above = np.hstack([of_cluster, -np.eye(num_clusters)])
    below = np.hstack([of_cluster, np.eye(num_clusters)])
    one, many = _sums_of_layer(num_experts, num_clusters)
    beside = np.zeros((num_experts, num_clusters)), np.zeros((num_clusters, num_clusters))
    found = milp(
        np.concatenate([np.zeros(num_x), np.ones(num_clusters)]),
        integrality=np.concatenate([np.ones(num_x), np.zeros(num_clusters)]),
        bounds=Bounds(0, np.concatenate([np.ones(num_x), np.full(num_clusters, np.inf)])),
        constraints=[
            LinearConstraint(above, -np.inf, mean),
            LinearConstraint(below, mean, np.inf),
            LinearConstraint(np.hstack([one, beside[0]]), 1, 1),
            LinearConstraint(np.hstack([many, beside[1]]), each, each),
        ],
        options={"time_limit": time_limit_s},
    )
    if found.x is None:
        raise SpecError(f"no clusters of {num_experts} experts in {time_limit_s:g} s", allowed="more time")
    clusters: Numbers = found.x[:num_x].reshape(num_experts, num_clusters).argmax(1)
    return clusters


def _sums_of_layer(num_experts: int, num_devices: int) -> tuple[Floats, Floats]:
    """Rows that sum x over devices for each expert, and over experts for each device."""
    one: Floats = np.kron(np.eye(num_experts), np.ones(num_devices)).astype(np.float64)
    many: Floats = np.kron(np.ones(num_experts), np.eye(num_devices)).astype(np.float64)
    return one, many


def _counts(
    num_layers: int, num_experts: int, num_devices: int, num_z: int
) -> tuple[LinearConstraint, LinearConstraint]:
    """Every expert on one device; as many on each."""
    one, many = _sums_of_layer(num_experts, num_devices)
    each = num_experts // num_devices
    whole = []
    for rows, count in ((one, 1), (many, each)):
        wide = csr_array(np.kron(np.eye(num_layers), rows))
        padded = csr_array(
            (wide.data, wide.indices, wide.indptr), shape=(wide.shape[0], wide.shape[1] + num_z)
        )
        whole.append(LinearConstraint(padded, count, count))
    return whole[0], whole[1]


def _moves(moves: Floats, num_devices: int) -> LinearConstraint:
    """x[l, a, g] - x[l + 1, b, g] - z[l, a, b] <= 0 for all."""
    num_layers, num_experts = len(moves) + 1, moves.shape[1]
    num_x = num_layers * num_experts * num_devices
    layer, a, b, g = (each.reshape(-1) for each in np.indices((*moves.shape, num_devices)))
    row = np.arange(len(layer))
    here = (layer * num_experts + a) * num_devices + g
    behind = ((layer + 1) * num_experts + b) * num_devices + g
    z = num_x + (layer * num_experts + a) * num_experts + b
    ones = np.ones(len(row))
    matrix = coo_array(
        (np.concatenate([ones, -ones, -ones]), (np.tile(row, 3), np.concatenate([here, behind, z]))),
        shape=(len(row), num_x + moves.size),
    )
    return LinearConstraint(matrix.tocsr(), -np.inf, 0)
