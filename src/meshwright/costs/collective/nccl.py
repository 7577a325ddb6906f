"""NcclCollectives: messages and collectives on clusters of GPUs, by curves fitted on published tables of NCCL and RCCL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import NamedTuple

from meshwright.costs.collective.collective import RING_PASSES, collective_table, flows_between
from meshwright.costs.collective.curve import NodeCurve, Span, Way, across_nodes_ways, fastest
from meshwright.costs.collective.profile import (
    ChipCollectives,
    CollectiveProfile,
    NetworkCollectives,
    packaged_profile,
)
from meshwright.costs.cost import Cost, Flow
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.error import SpecError
from meshwright.specs.plan.prediction import Basis

# Chips by the beginning of their names, longest first; those of one NVLink generation share curves, scaled by link rate.
MEASURED_CHIPS = {"a100": "A100", "h100": "H100", "b200": "B200", "mi300x": "MI300X"}
RELATED_CHIPS = {
    "a800": "A100",
    "h200": "H100",
    "h800": "H100",
    "gh200": "H100",
    "gb200": "B200",
    "gb300": "B200",
    "b300": "B200",
    "mi325x": "MI300X",
    "mi350x": "MI300X",
    "mi355x": "MI300X",
}
UNKNOWN_CHIP = "H100"  # its efficiencies, on the link rates of a chip nobody measured
EXTRAPOLATED_UNCERTAINTY = 0.25  # least half width outside the measured range
UNKNOWN_UNCERTAINTY = 0.50  # as for a chip never seen
LINK_TOLERANCE = 0.02  # a nominal rate this near the measured one is the same link


class _Placement(NamedTuple):
    """Members of an exchange by node: the devices of each node, in order."""

    nodes: tuple[tuple[int, ...], ...]

    @property
    def fewest(self) -> int:
        return min(len(node) for node in self.nodes)


@dataclass(frozen=True, eq=False)
class NcclCollectives:
    """A communication model for GPUs: the fastest of NCCL's ways on the placement of an exchange's ends.

    The innermost level of the cluster is the NVLink domain; levels above it are networks. An exchange holds its links
    for all its seconds (NCCL kernels poll), so `latency_s` is 0 but for messages to a node that is further away than those
    of one hall. Raises SpecError for a cluster of CPU processes.

    Attributes:
        cluster: devices and links.
        profile: fitted constants; by default those of the package.
    """

    cluster: ClusterSpec
    profile: CollectiveProfile = field(default_factory=packaged_profile)
    _placements: dict[tuple[int, ...], _Placement] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.cluster.machine.is_here:
            raise SpecError(
                f"cluster {self.cluster.name} is of {self.cluster.devices[0].name} processes",
                allowed="GPUs: NCCL does not run elsewhere",
                next="measure the links of this machine: meshwright calibrate",
            )

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """Seconds of the fastest way, with the interval of rows that were not fitted and the basis."""
        if len(set(devices)) < 2:
            return Cost(0.0, compute_share=0.0)
        operation = collective_table(exchange, len(devices))
        chip, basis = self._chip(devices)
        seconds = fastest(self.ways(operation, num_bytes, devices, exchange.dtype)).seconds
        spread, far_s = chip.spread.at(num_bytes), 0.0
        if len(self._placement(devices).nodes) > 1:
            far_s = self._far_s(devices) if operation == "send_receive" else 0.0
            basis, spread = _weaker(basis), max(spread, self._network.spread)
        elif len(devices) > chip.most_members or num_bytes > chip.most_bytes:
            basis = _weaker(basis)
        least = {"interpolated": 0.0, "extrapolated": EXTRAPOLATED_UNCERTAINTY}.get(
            basis, UNKNOWN_UNCERTAINTY
        )
        return Cost(
            seconds, far_s, compute_share=0.0, link_share=1.0, uncertainty=max(spread, least), basis=basis
        )

    @property
    def _network(self) -> NetworkCollectives:
        """Of the outermost level's fabric."""
        return self.profile.networks[self.cluster.levels[-1].fabric]

    def _far_s(self, ends: tuple[int, ...]) -> float:
        """Latency of a message to another node beyond that of a hall, which is in the constants: what follows it on the way
        does not wait for it."""
        return max(0.0, self.cluster.latency_s(ends[0], ends[1]) - self._network.curve.low_hop_s)

    def ways(
        self, operation: str, num_bytes: float, devices: tuple[int, ...], dtype: str = ""
    ) -> tuple[Way, ...]:
        """Every way that NCCL has for an operation of `collective_curve.OPERATIONS` on these devices."""
        curve, placement = self._curve(devices), self._placement(devices)
        if len(placement.nodes) == 1:
            return curve.ways(operation, num_bytes, len(devices), dtype)
        span = self._span(placement, is_everyone=operation == "all_to_all")
        return across_nodes_ways(curve, self._network.curve, operation, num_bytes, span, dtype)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """Bytes from device to device. Over nodes a ring runs once through each NIC, so its bytes are spread over them."""
        placement = self._placement(devices)
        counts = {len(node) for node in placement.nodes}
        operation = collective_table(exchange, len(devices))
        is_plain = operation not in RING_PASSES or operation == "all_to_all"
        if is_plain or len(placement.nodes) < 2 or len(counts) > 1:
            return flows_between(exchange, num_bytes, devices, is_paired=self.cluster.is_paired(devices))
        members = len(devices)
        wire_bytes = RING_PASSES[operation] * (members - 1) / members * num_bytes
        return _rail_flows(placement.nodes, wire_bytes, is_paired=self.cluster.levels[0].is_paired)

    def _placement(self, devices: tuple[int, ...]) -> _Placement:
        """The devices by node; remembered, as the same groups exchange again and again."""
        if devices not in self._placements:
            self._placements[devices] = self._placed(devices)
        return self._placements[devices]

    def _placed(self, devices: tuple[int, ...]) -> _Placement:
        size = self.cluster.levels[0].num_devices
        nodes: dict[int, list[int]] = {}
        for device in devices:
            nodes.setdefault(device // size, []).append(device)
        return _Placement(tuple(tuple(node) for node in nodes.values()))

    def _span(self, placement: _Placement, *, is_everyone: bool) -> Span:
        """Bandwidths from the levels above the node, up to the one that joins the group.

        A link that a unit of several nodes shares carries a ring once, but the all-to-all of each of its nodes.
        """
        per_node = placement.fewest
        chain = per_node / (per_node - 1) if self.cluster.levels[0].is_paired and per_node > 1 else 1.0
        if self.cluster.is_routed:
            nic = self._routed_rate(placement, is_everyone)
            return Span(len(placement.nodes), per_node, nic, per_node * nic, chain)
        nic = uplink = float("inf")
        for below, level in pairwise(self.cluster.levels):
            if level.attached == "device" and not level.is_shared:
                nic = min(nic, level.bandwidth_bytes_per_s)
            else:
                unit = level.num_devices if level.is_shared else below.num_devices
                sharers = max(Counter(node[0] // unit for node in placement.nodes).values())
                uplink = min(uplink, level.bandwidth_bytes_per_s / (sharers if is_everyone else 1))
            if len({node[0] // level.num_devices for node in placement.nodes}) == 1:
                break
        if self.cluster.links:
            used = {
                (f"device {a}", f"device {b}") for a, b in _pairs(placement.nodes, is_everyone=is_everyone)
            }
            wired = [link for link in self.cluster.links if (link.source, link.target) in used]
            nic = min([nic, *(link.bandwidth_bytes_per_s for link in wired)])
        uplink = min(uplink, per_node * nic)
        return Span(len(placement.nodes), per_node, min(nic, uplink), uplink, chain)

    def _routed_rate(self, placement: _Placement, is_everyone: bool) -> float:
        """Bandwidth that a device has to other nodes where it alone sends to the next node's, or to all of them, and links
        are shared as the cluster's routing has it."""
        pairs = _pairs(placement.nodes, is_everyone=is_everyone)
        links = {link.group: link for pair in pairs for link in self.cluster.path(*pair)}
        used = Counter(group for pair in pairs for group in {link.group for link in self.cluster.path(*pair)})
        each = len(pairs) / len({source for source, _ in pairs})
        return min(link.bandwidth_bytes_per_s * each / used[group] for group, link in links.items())

    def _curve(self, devices: tuple[int, ...]) -> NodeCurve:
        """Of the chip, on what each of the node's members has to the others; one alone in its node uses no link there."""
        node, fewest = self.cluster.levels[0], self._placement(devices).fewest
        rate = node.group_bytes_per_s(fewest if fewest > 1 else node.num_devices)
        return self._chip(devices)[0].curve.on_link(rate)

    def _chip(self, devices: tuple[int, ...]) -> tuple[ChipCollectives, Basis]:
        """Constants of the first member's chip, and how near they are to what was measured."""
        name = self.cluster.device(devices[0]).name.lower()
        measured = _beginning(name, MEASURED_CHIPS)
        if measured is not None:
            chip = self.profile.chips[measured]
            node = self.cluster.levels[0]
            nominal = node.group_bytes_per_s(node.num_devices)
            is_same_link = abs(nominal / chip.curve.link_bytes_per_s - 1) <= LINK_TOLERANCE
            return chip, "interpolated" if is_same_link else "extrapolated"
        related = _beginning(name, RELATED_CHIPS)
        return self.profile.chips[related or UNKNOWN_CHIP], "extrapolated" if related else "never seen"


def _pairs(nodes: Sequence[Sequence[int]], *, is_everyone: bool) -> list[tuple[int, int]]:
    """Devices of different nodes that send to each other: all of them, or along rings over the nodes in the group's order."""
    if is_everyone:
        return [(a, b) for one, two in permutations(nodes, 2) for a in one for b in two]
    return [pair for k, node in enumerate(nodes) for pair in zip(node, nodes[(k + 1) % len(nodes)])]


def _beginning(name: str, chips: dict[str, str]) -> str | None:
    return next((chip for start, chip in chips.items() if name.startswith(start)), None)


def _weaker(basis: Basis) -> Basis:
    """What is outside the measured range is extrapolated at best."""
    return "extrapolated" if basis == "interpolated" else basis


def has_measured_links(device: DeviceSpec) -> bool:
    """Were collectives measured on this chip, or on one of its links' generation?"""
    return _beginning(device.name.lower(), {**MEASURED_CHIPS, **RELATED_CHIPS}) is not None


def _rail_flows(
    nodes: tuple[tuple[int, ...], ...], wire_bytes: float, *, is_paired: bool
) -> tuple[Flow, ...]:
    """Around the members of each node, over all links between them where they are paired, and from each member to the same
    one of the next node."""
    per_node = len(nodes[0])
    if is_paired:
        inside = [Flow(a, b, wire_bytes / per_node) for node in nodes for a, b in permutations(node, 2)]
    else:
        inside = [Flow(node[i], node[i + 1], wire_bytes) for node in nodes for i in range(per_node - 1)]
    between = [
        Flow(node[i], nodes[(k + 1) % len(nodes)][i], wire_bytes / per_node)
        for k, node in enumerate(nodes)
        for i in range(per_node)
    ]
    return (*inside, *between)
