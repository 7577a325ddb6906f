"""MiCS as a sharding: values, gradients and state among the same few devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.sharding import Sharding


@dataclass(frozen=True)
class Mics(Sharding):
    """A copy of everything divided among `group` devices, as many copies as there are groups."""

    values: int = field(init=False)
    gradients: int = field(init=False)
    state: int = field(init=False)
    group: int = option(2, least=2, help="devices of a partition group, the innermost of dp")

    def __post_init__(self) -> None:
        for name in ("values", "gradients", "state"):
            object.__setattr__(self, name, self.group)

    @classmethod
    def choices(cls, plan: Plan, cluster: ClusterSpec) -> tuple[Mics, ...]:
        """Groups of every size that divides the devices with the same parameters."""
        everybody = plan.dp * plan.cp
        return tuple(cls(group=size) for size in range(2, everybody + 1) if everybody % size == 0)
