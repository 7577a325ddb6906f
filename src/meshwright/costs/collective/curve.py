"""What collectives take on GPUs: the fastest of the ways NCCL has, each a start, steps of a latency, and bytes over a rate.

Letters: S bytes of the whole tensor (before a reduce-scatter, after an all-gather; of one member's buffer for an all-reduce
and an all-to-all; of the message), n members, N nodes, g members of one node.

One way costs  start + hops * hop + (wire + sqrt(half * wire)) / rate:  `hops` messages wait for each other, `wire` bytes
pass the busiest link in one direction, and the rate ramps up with the bytes (half of it at wire = half), because a small
message fills few channels. Steps and wire bytes of the ways:

    ring           all-reduce 2 (n - 1) steps, all-gather and reduce-scatter n - 1;  wire = steps / n * S
                   (Thakur, Rabenseifner, Gropp 2005); and each member copies its own block, S / n
    switch         all-reduce in the NVLink switch (NVLink SHARP, from Hopper on, floating point only): each member's bytes
                   are read once and its share is written once, wire = (n + 1) / n * S, 2 steps
    direct         all-to-all: n - 1 messages of S / n beside each other;  send and receive: one message
    tree           all-reduce over nodes: double binary tree (Sanders, Speck, Traeff 2009), 2 ceil(log2 N) hops, 2 S in all
    hierarchical   within the node, then every member with its peers of the other nodes over its own NIC, then within
    two-level      all-to-all: first within the node to the member on the right rail, then one message to each other node

In a node the ring and the direct way have two protocols each, "low latency" (flags travel with the data) and "bulk".
The low-latency ring is bound by the instructions that pack and poll, not by the link: a member handles S a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshwright.costs.collective.collective import GROUP_TABLES, RING_PASSES
from meshwright.specs.error import SpecError

OPERATIONS = (*GROUP_TABLES, "send_receive")
# What the NVLink switch cannot add: it reduces floating point only (NCCL documentation, NCCL_NVLS_ENABLE).
INTEGER_DTYPES = ("int8", "uint8", "int32", "int64")
LOW_LATENCY_SHARE = (
    0.5  # of the network's rate: every 8 bytes on the wire carry 4 bytes of data and a flag of 4
)
TREE_EFFICIENCY = 0.92  # of the ring's rate: the share NCCL's own tuning gives its tree (graph/tuning.cc)


class Way(NamedTuple):
    """One way to do a collective, and what it takes."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Pipe:
    """How messages pass: seconds before the first byte, per hop, and the rate with its ramp.

    Attributes:
        start_s: launch of the kernel and first handshake.
        hop_s: one message that waits for the one before.
        bytes_per_s: rate of the busiest link for very large messages, in one direction.
        half_bytes: wire bytes at which half of that rate is reached; 0: no ramp.
    """

    start_s: float
    hop_s: float
    bytes_per_s: float
    half_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or min(self.start_s, self.hop_s, self.half_bytes) < 0:
            raise SpecError(f"{self} cannot be", allowed="a rate above 0, latencies and half bytes from 0")

    def seconds(self, hops: float, wire_bytes: float) -> float:
        """Seconds of `hops` messages one after the other that put `wire_bytes` on the busiest link."""
        ramped_bytes = wire_bytes + math.sqrt(self.half_bytes * wire_bytes)
        return self.start_s + hops * self.hop_s + ramped_bytes / self.bytes_per_s

    def with_rate(self, bytes_per_s: float) -> Pipe:
        """The same on another link; the ramp is one of time, so its bytes change with the rate."""
        return replace(
            self, bytes_per_s=bytes_per_s, half_bytes=self.half_bytes * bytes_per_s / self.bytes_per_s
        )


@dataclass(frozen=True, slots=True)
class NodeCurve:
    """Constants of one chip in its NVLink domain.

    Attributes:
        link_bytes_per_s: nominal rate of a member's links in one direction; the rates below are measured on it.
        ring_low, ring_bulk: the two protocols of the ring.
        copy_bytes_per_s: rate at which a member copies its own block.
        direct_low, direct_bulk: the two protocols of messages between any two members, in an all-to-all.
        message: the bulk protocol of one message while the others are silent.
        switch: reduction in the switch; None where the chip has none.
    """

    link_bytes_per_s: float
    ring_low: Pipe
    ring_bulk: Pipe
    copy_bytes_per_s: float
    direct_low: Pipe
    direct_bulk: Pipe
    message: Pipe
    switch: Pipe | None = None

    def on_link(self, link_bytes_per_s: float) -> NodeCurve:
        """The same efficiencies on links of another nominal rate."""
        factor = link_bytes_per_s / self.link_bytes_per_s
        if factor == 1.0:
            return self

        def moved(pipe: Pipe) -> Pipe:
            return pipe.with_rate(pipe.bytes_per_s * factor)

        return NodeCurve(
            link_bytes_per_s,
            moved(self.ring_low),
            moved(self.ring_bulk),
            self.copy_bytes_per_s,
            moved(self.direct_low),
            moved(self.direct_bulk),
            moved(self.message),
            None if self.switch is None else moved(self.switch),
        )

    def ways(self, operation: str, num_bytes: float, num_members: int, dtype: str = "") -> tuple[Way, ...]:
        """Every way NCCL has within one domain. Raises SpecError on another operation than OPERATIONS."""
        check_operation(operation)
        if operation == "send_receive":
            low_s = self.direct_low.seconds(1, num_bytes)
            return (Way("low latency", low_s), Way("bulk", self.message.seconds(1, num_bytes)))
        if operation == "all_to_all":
            own_bytes = num_bytes / num_members
            return self._direct_ways(num_members - 1, num_bytes - own_bytes, own_bytes)
        return self._ring_ways(operation, num_bytes, num_members, dtype)

    def _direct_ways(self, hops: int, wire_bytes: float, copied_bytes: float) -> tuple[Way, ...]:
        copy_s = copied_bytes / self.copy_bytes_per_s
        return (
            Way("direct, low latency", self.direct_low.seconds(hops, wire_bytes) + copy_s),
            Way("direct, bulk", self.direct_bulk.seconds(hops, wire_bytes) + copy_s),
        )

    def _ring_ways(self, operation: str, num_bytes: float, num_members: int, dtype: str) -> tuple[Way, ...]:
        steps = RING_PASSES[operation] * (num_members - 1)
        wire_bytes = steps / num_members * num_bytes
        copy_s = num_bytes / num_members / self.copy_bytes_per_s
        handled_bytes = RING_PASSES[operation] * num_bytes
        ways = (
            Way("ring, low latency", self.ring_low.seconds(steps, handled_bytes)),
            Way("ring, bulk", self.ring_bulk.seconds(steps, wire_bytes) + copy_s),
        )
        if self.switch is None or operation != "all_reduce" or dtype in INTEGER_DTYPES:
            return ways
        read_and_written = (num_members + 1) / num_members * num_bytes
        return (*ways, Way("switch", self.switch.seconds(2, read_and_written)))


@dataclass(frozen=True, slots=True)
class NetworkCurve:
    """Constants between nodes, of any NIC.

    Attributes:
        low_hop_s: one message with flags between two nodes that waits for the one before (NIC, switches, proxy thread).
        hop_s: one chunk of the bulk protocol that waits for the one before, with its credit.
        efficiency: share of the nominal NIC rate that very large messages between two nodes reach.
        decay: the efficiency over N nodes is `efficiency` * (N / 2) ** -decay (collisions of routes, stragglers).
        half_bytes_per_rate_s: ramp as a time: half of the rate is reached at this many seconds' worth of bytes.
        peer_s: one message to one peer among many at once (posting it, its completion).
    """

    low_hop_s: float
    hop_s: float
    efficiency: float
    decay: float
    half_bytes_per_rate_s: float
    peer_s: float

    def pipe(self, nominal_bytes_per_s: float, num_nodes: int, start_s: float, hop_s: float) -> Pipe:
        """The pipe over links of a nominal rate that join `num_nodes` nodes; start and hops are the caller's."""
        rate = nominal_bytes_per_s * self.efficiency * (max(num_nodes, 2) / 2) ** -self.decay
        return Pipe(start_s, hop_s, rate, self.half_bytes_per_rate_s * rate)

    def low_pipe(self, nominal_bytes_per_s: float, num_nodes: int, start_s: float, hop_s: float) -> Pipe:
        """The same with the low-latency protocol."""
        rate = self.pipe(nominal_bytes_per_s, num_nodes, start_s, hop_s).bytes_per_s
        return Pipe(start_s, hop_s, LOW_LATENCY_SHARE * rate)


@dataclass(frozen=True, slots=True)
class Span:
    """Where the members of a group are: `num_nodes` nodes with `per_node` members each (the fewest of any node).

    `nic_bytes_per_s`: nominal rate of the NIC of one member; `uplink_bytes_per_s`: of everything that leaves one
    node, which is per_node NICs or a narrower shared link. `chain_share`: what chains through the members of a node
    pass over what their rings do; where each two have a link of their own, g members have g - 1 rings and g chains that
    share no link.
    """

    num_nodes: int
    per_node: int
    nic_bytes_per_s: float
    uplink_bytes_per_s: float
    chain_share: float = 1.0

    @property
    def num_members(self) -> int:
        """Members of the whole group."""
        return self.num_nodes * self.per_node


def fastest(ways: Iterable[Way]) -> Way:
    """The way that takes the least; NCCL's own tuning aims at it, too."""
    return min(ways, key=lambda way: way.seconds)


def in_node_s(curve: NodeCurve, operation: str, num_bytes: float, num_members: int, dtype: str = "") -> float:
    """Seconds of an operation of OPERATIONS within one NVLink domain; 0 for one member alone."""
    return 0.0 if num_members < 2 else fastest(curve.ways(operation, num_bytes, num_members, dtype)).seconds


def across_nodes_ways(
    node: NodeCurve, network: NetworkCurve, operation: str, num_bytes: float, span: Span, dtype: str = ""
) -> tuple[Way, ...]:
    """Every way over several nodes. Raises SpecError on another operation than OPERATIONS."""
    check_operation(operation)
    if operation == "send_receive":
        nominal = min(span.nic_bytes_per_s, span.uplink_bytes_per_s)
        low = network.low_pipe(nominal, 2, node.direct_low.start_s, network.low_hop_s)
        bulk = network.pipe(nominal, 2, node.message.start_s, network.hop_s)
        return (
            Way("network, low latency", low.seconds(1, num_bytes)),
            Way("network, direct", bulk.seconds(1, num_bytes)),
        )
    if operation == "all_to_all":
        return _all_to_all_ways(node, network, num_bytes, span)
    ways = [
        Way("ring over nodes", ring_over_nodes_s(network, operation, num_bytes, span, node.ring_bulk)),
        _low_ring_way(node, network, operation, num_bytes, span),
    ]
    if span.per_node > 1:
        ways.append(_hierarchical_way(node, network, operation, num_bytes, span, dtype))
    if operation == "all_reduce":
        ways += _tree_ways(node, network, num_bytes, span)
    return tuple(ways)


def ring_over_nodes_s(
    network: NetworkCurve, operation: str, num_bytes: float, span: Span, inside: Pipe
) -> float:
    """Ring through all members: one hop of g crosses the network, and every NIC of a node carries its part of the channels.

    `inside`: the part of the ring within a node: its start, its hops, and the most it lets pass.
    """
    members = span.num_members
    steps = RING_PASSES[operation] * (members - 1)
    hop_s = ((span.per_node - 1) * inside.hop_s + network.hop_s) / span.per_node
    pipe = network.pipe(span.uplink_bytes_per_s, span.num_nodes, inside.start_s, hop_s)
    most = inside.bytes_per_s * span.chain_share
    if pipe.bytes_per_s > most:
        pipe = pipe.with_rate(most)
    return pipe.seconds(steps, steps / members * num_bytes)


def check_operation(operation: str) -> None:
    """Raises SpecError unless it is one of OPERATIONS."""
    if operation not in OPERATIONS:
        raise SpecError(f"collective {operation!r} has no formula", allowed=", ".join(OPERATIONS))


def _low_ring_way(
    node: NodeCurve, network: NetworkCurve, operation: str, num_bytes: float, span: Span
) -> Way:
    hop_s = ((span.per_node - 1) * node.ring_low.hop_s + network.low_hop_s) / span.per_node
    pipe = network.low_pipe(span.uplink_bytes_per_s, span.num_nodes, node.ring_low.start_s, hop_s)
    pipe = pipe.with_rate(min(pipe.bytes_per_s, node.ring_low.bytes_per_s))
    passes = RING_PASSES[operation]
    seconds = pipe.seconds(passes * (span.num_members - 1), passes * num_bytes)
    return Way("ring over nodes, low latency", seconds)


def _hierarchical_way(
    node: NodeCurve, network: NetworkCurve, operation: str, num_bytes: float, span: Span, dtype: str
) -> Way:
    """The parts wait for each other: no pipelining between the levels is counted."""
    inner = {"all_reduce": ("reduce_scatter", "all_gather")}.get(operation, (operation,))
    within_s = sum(in_node_s(node, part, num_bytes, span.per_node, dtype) for part in inner)
    share = num_bytes / span.per_node
    nic = min(span.nic_bytes_per_s, span.uplink_bytes_per_s / span.per_node)
    rails = Span(span.num_nodes, 1, nic, nic)
    over_s = ring_over_nodes_s(network, operation, share, rails, node.ring_bulk)
    return Way("hierarchical", within_s + over_s)


def _tree_ways(node: NodeCurve, network: NetworkCurve, num_bytes: float, span: Span) -> tuple[Way, ...]:
    """Up and down a tree of the nodes; within a node a chain."""
    over, within = 2 * math.ceil(math.log2(span.num_nodes)), 2 * (span.per_node - 1)
    chain_s = within * node.ring_low.hop_s
    bulk = network.pipe(span.uplink_bytes_per_s, span.num_nodes, node.ring_bulk.start_s, network.hop_s)
    bulk = bulk.with_rate(TREE_EFFICIENCY * min(bulk.bytes_per_s, node.ring_bulk.bytes_per_s))
    start_s = node.ring_low.start_s
    low = network.low_pipe(span.uplink_bytes_per_s, span.num_nodes, start_s, network.low_hop_s)
    low = low.with_rate(min(TREE_EFFICIENCY * low.bytes_per_s, node.ring_low.bytes_per_s))
    return (
        Way("tree", chain_s + bulk.seconds(over, 2 * num_bytes)),
        Way("tree, low latency", chain_s + low.seconds(over, 2 * num_bytes)),
    )


def _all_to_all_ways(node: NodeCurve, network: NetworkCurve, num_bytes: float, span: Span) -> tuple[Way, ...]:
    """NVLink and network work at the same time; the slower one counts."""
    nic = min(span.nic_bytes_per_s, span.uplink_bytes_per_s / span.per_node)
    far_peers = span.num_members - span.per_node
    far_bytes, near_bytes = num_bytes * far_peers / span.num_members, num_bytes / span.num_nodes
    pipe = network.pipe(nic, span.num_nodes, node.direct_bulk.start_s, network.peer_s)
    near_s = in_node_s(node, "all_to_all", near_bytes, span.per_node)
    direct = Way("network, direct", max(pipe.seconds(far_peers, far_bytes), near_s))
    if span.per_node == 1:
        return (direct,)
    sorted_s = in_node_s(node, "all_to_all", num_bytes, span.per_node)
    two_level = Way("two-level", sorted_s + pipe.seconds(span.num_nodes - 1, far_bytes))
    return (direct, two_level)
