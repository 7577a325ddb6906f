"""serving_costs: what a forward pass of an engine that serves is priced with: kernels and messages as it launches them.

Tables of kernels time what libraries do. An engine casts to float8 in the norm or activation before a product, and sums small
messages between a node's devices in a kernel of its own; what it adds to a step as a whole is `StepOverhead`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.collective.one_shot import OneShotSums
from meshwright.costs.kernel.curve import GpuKernels, gpu_costs
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.slot import resolve

FUSED = "casts to float8, where there are any, are part of the kernel before"
ONE_SHOT = "engines sum small messages of a node in one kernel"


def serving_costs(cluster: ClusterSpec) -> tuple[Any, tuple[str, ...]]:
    """The cost and communication model of a cluster that serves, and what it assumes.

    Curves of kernels become an engine's; a roofline, and what somebody else fills the slot `costs` with, stay as they are.
    Raises PlanError where nobody knows the name in that slot.
    """
    if cluster.costs:
        costs = resolve("costs", cluster.costs)(cluster)
        said: tuple[str, ...] = (f"works and messages cost what {cluster.costs} says",)
    else:
        costs, said = gpu_costs(cluster)
    if not isinstance(costs, GpuKernels):
        return costs, said
    if not isinstance(costs.links, NcclCollectives):
        return replace(costs, casts="fused"), (*said, FUSED)
    return replace(costs, casts="fused", links=OneShotSums(costs.links)), (*said, FUSED, ONE_SHOT)
