"""Sites: which devices of a cluster a plan's groups stand on; groups that lie alike on the nodes are one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.space.degrees import mesh_strides
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.stage.mesh import collapsed_axes

Ints = NDArray[np.int64]


def members(plan: Plan, axes: Sequence[str]) -> Ints:
    """Devices of the group along these axes in which the first device is, in the order of their coordinates."""
    found = np.zeros(1, dtype=np.int64)
    steps = mesh_strides(dict(plan.mesh))
    inside = dict.fromkeys(steps, 1)  # along each of these, of the axes into which it is cut
    for axis in reversed(collapsed_axes(plan)):
        whole = axis.name[:2]
        step = steps[whole] * inside[whole]
        inside[whole] *= axis.size
        if axis.name in axes:
            found = (step * np.arange(axis.size)[:, None] + found).reshape(-1)
    return found


class Sites:
    """Groups of devices, one for all that lie alike on the nodes of a cluster: exchanges cannot tell them apart.

    ``is_flat``: all nodes are as far from each other, so that how many devices stand on each says all.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self._node = cluster.levels[0].num_devices
        self.is_flat = len(cluster.levels) <= 2 and not cluster.links and not cluster.is_routed
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._asked: dict[tuple[object, ...], tuple[int, ...]] = {}

    def told_apart(self, strides: Ints) -> Ints:
        """Steps between neighbours, as far as exchanges can tell: whole nodes are as far as one where all nodes are."""
        if not self.is_flat:
            return strides
        return np.where(strides % self._node == 0, np.minimum(strides, self._node), strides)

    def members(self, plan: Plan, axes: Sequence[str]) -> tuple[int, ...]:
        """Devices of a group that lies as the plan's along these axes."""
        key = (
            plan.mesh,
            plan.ep,
            plan.expert_tp,
            plan.ep_near,
            plan.ulysses,
            plan.sharing_degree,
            tuple(axes),
        )
        if key not in self._asked:
            self._asked[key] = self._alike(members(plan, axes))
        return self._asked[key]

    def _alike(self, found: Ints) -> tuple[int, ...]:
        if not self.is_flat:
            return tuple(found.tolist())
        counts = np.bincount(found // self._node)
        counts = counts[counts > 0]
        key = (len(counts), int(counts.min()), int(counts.max()))
        if key not in self._known:
            self._known[key] = tuple(found.tolist())
        return self._known[key]
