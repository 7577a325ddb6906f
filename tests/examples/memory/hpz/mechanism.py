"""hpZ as a sharding: values among the devices of a node, gradients and state among all."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.sharding import EVERYBODY, Sharding


@dataclass(frozen=True)
class Hpz(Sharding):
    """A copy of the weights in every node, gathered within it; gradients and optimizer state over everybody."""

    values: int = option(
        8, least=1, help="devices of a node, the innermost of dp, that share a copy of the weights"
    )
    gradients: int = EVERYBODY
    state: int = EVERYBODY

    @classmethod
    def choices(cls, plan: Plan, cluster: ClusterSpec) -> tuple[Hpz, ...]:
        """The one that the paper has: what a node has of the devices with the same parameters."""
        node = gcd(plan.dp * plan.cp, max(1, cluster.levels[0].num_devices // plan.tp))
        return (cls(node),)
