"""What rings take on nodes of packages: every member of a unit crosses to the next unit on a link of its own.

A collective runs as many rings beside each other as a unit has members, each of which leaves the unit at another
one, as collective libraries do. So a unit with g members passes g links' rate at every level, and the slowest level counts.
Between nodes all wait for the slowest of them, as the package's training steps have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.costs.collective.collective import RING_PASSES, collective_s, collective_table
from meshwright.costs.cost import Cost, Flow
from meshwright.costs.roofline import LINK_EFFICIENCY, UNCERTAINTY
from meshwright.costs.step.profile import packaged_step_profile
from meshwright.costs.step.step_costs import slowest_of
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.cluster import ClusterSpec, Level

# Whose steps say how long nodes wait for each other: published ones on up to 2,520 A100, none of them on Frontier.
# Those of the other families say the same to 3 %.
WAITING_FAMILY = "a100"
NETWORK = "network"  # the level that joins nodes


class Crossing(NamedTuple):
    """Members of a group at a level that it spans: units that the level joins, and the members of each, in order."""

    level: Level
    units: tuple[tuple[int, ...], ...]

    @property
    def num_rails(self) -> int:
        """Rings that leave a unit beside each other."""
        return min(map(len, self.units))


@dataclass(frozen=True)
class Rails:
    """A communication model of collectives over levels of devices.

    Attributes:
        cluster: devices and levels; units of every level have equally many members of a group.
    """

    cluster: ClusterSpec

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """Seconds of rings at the rate of the slowest level; all their links are busy meanwhile."""
        crossings = tuple(self._crossings(devices))
        if not crossings:
            return Cost(0.0, compute_share=0.0)
        rate = LINK_EFFICIENCY * min(each.num_rails * each.level.bandwidth_bytes_per_s for each in crossings)
        latency_s = max(each.level.latency_s for each in crossings)
        table = collective_table(exchange, len(devices))
        seconds = collective_s(table, num_bytes, len(devices), latency_s, rate)
        if crossings[-1].level.name == NETWORK:
            jitter = packaged_step_profile().fit.of(WAITING_FAMILY).jitter
            seconds *= 1 + jitter * slowest_of(len(crossings[-1].units))
        return Cost(seconds, compute_share=0.0, link_share=1.0, uncertainty=UNCERTAINTY, basis="never seen")

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """Bytes of the rings at every level, from each member of a unit to the same one of the next."""
        members = len(devices)
        passed = RING_PASSES[collective_table(exchange, members)] * (members - 1) / members * num_bytes
        return tuple(
            Flow(source, target, passed / each.num_rails)
            for each in self._crossings(devices)
            for one, following in zip(each.units, (*each.units[1:], each.units[0]), strict=True)
            for source, target in zip(one, following)
        )

    def _crossings(self, devices: tuple[int, ...]) -> Iterator[Crossing]:
        """Of every level that joins several units of the group's first one."""
        inner = 1
        for level in self.cluster.levels:
            units: dict[int, list[int]] = {}
            for device in devices:
                if device // level.num_devices == devices[0] // level.num_devices:
                    units.setdefault(device // inner, []).append(device)
            if len(units) > 1:
                yield Crossing(level, tuple(map(tuple, units.values())))
            inner = level.num_devices
