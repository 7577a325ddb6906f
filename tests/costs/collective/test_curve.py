"""Tests of costs/collective_*.py: ways and their limits, the packaged constants, placements on clusters, experts."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs.collective.collective import all_reduce_s, reduce_scatter_s
from meshwright.costs.collective.curve import (
    OPERATIONS,
    NetworkCurve,
    NodeCurve,
    Pipe,
    Span,
    across_nodes_ways,
    fastest,
    in_node_s,
)
from meshwright.costs.collective.expert import ExpertCurve, member_probability
from meshwright.costs.collective.nccl import (
    EXTRAPOLATED_UNCERTAINTY,
    UNKNOWN_UNCERTAINTY,
    NcclCollectives,
)
from meshwright.costs.collective.profile import CollectiveProfile, packaged_profile
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.cluster import ClusterSpec, Level
from meshwright.specs.cluster.device import DeviceSpec, Link
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError

MIB = 2**20
PLAIN = Pipe(0.0, 1e-6, 1e11)
SLOW = Pipe(1.0, 1e-6, 1e11)  # never the fastest
NODE = NodeCurve(2e11, SLOW, PLAIN, math.inf, SLOW, PLAIN, PLAIN)
NETWORK = NetworkCurve(1.0, 1e-5, 1.0, 0.0, 0.0, 1e-6)
GPU = DeviceSpec("H100", 80 * 10**9, 3.35e12, {"bfloat16": 1e15})


def cluster(num_nodes: int, per_node: int = 8, nic: float = 50e9, device: DeviceSpec = GPU) -> ClusterSpec:
    levels = [Level("node", per_node, 450e9, 2e-6)]
    if num_nodes > 1:
        levels.append(Level("network", num_nodes * per_node, nic, 5e-6))
    return ClusterSpec("test", (device,) * (num_nodes * per_node), tuple(levels))


def seconds(costs: NcclCollectives, operation: str, num_bytes: float, devices: tuple[int, ...]) -> float:
    return costs.exchange_cost(Exchange(("dp",), algorithm=operation), num_bytes, devices).seconds


@pytest.mark.parametrize("members", [2, 3, 8])
def test_without_start_ramp_and_copies_the_ring_is_the_textbook_one(members):
    assert in_node_s(NODE, "all_reduce", 1e8, members) == pytest.approx(
        all_reduce_s(1e8, members, 1e-6, 1e11)
    )
    expected = reduce_scatter_s(1e8, members, 1e-6, 1e11)
    assert in_node_s(NODE, "reduce_scatter", 1e8, members) == pytest.approx(expected)


def test_a_ramp_halves_the_rate_at_its_half_bytes():
    assert Pipe(0.0, 0.0, 1e9, 1e6).seconds(1, 1e6) == pytest.approx(2 * 1e6 / 1e9)
    moved = Pipe(0.0, 0.0, 1e9, 1e6).with_rate(2e9)
    assert moved.half_bytes == 2e6  # the same time to ramp up


def test_a_pipe_refuses_what_cannot_be():
    with pytest.raises(SpecError, match="above 0"):
        Pipe(0.0, 0.0, 0.0)


def test_the_switch_reduces_floating_point_only():
    switch = Pipe(0.0, 0.0, 1e12)
    node = NodeCurve(2e11, SLOW, PLAIN, math.inf, SLOW, PLAIN, PLAIN, switch)
    assert in_node_s(node, "all_reduce", 1e8, 8, "bfloat16") == pytest.approx(9 / 8 * 1e8 / 1e12)
    assert in_node_s(node, "all_reduce", 1e8, 8, "int8") == in_node_s(NODE, "all_reduce", 1e8, 8)
    assert in_node_s(node, "all_gather", 1e8, 8) == in_node_s(NODE, "all_gather", 1e8, 8)


def test_an_own_block_is_copied():
    node = NodeCurve(2e11, SLOW, PLAIN, 1e12, SLOW, PLAIN, PLAIN)
    extra = in_node_s(node, "all_gather", 8e8, 8) - in_node_s(NODE, "all_gather", 8e8, 8)
    assert extra == pytest.approx(1e8 / 1e12)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_member_alone_takes_nothing_and_unknown_names_are_refused(operation):
    assert in_node_s(NODE, operation, 1e6, 1) == 0.0
    with pytest.raises(SpecError, match="gossip.*send_receive"):
        NODE.ways("gossip", 1.0, 2)


def test_over_nodes_a_ring_wins_for_large_and_a_tree_for_small_messages():
    span = Span(64, 8, 50e9, 400e9)
    small = fastest(across_nodes_ways(NODE, NETWORK, "all_reduce", 1e3, span))
    large = fastest(across_nodes_ways(NODE, NETWORK, "all_reduce", 1e11, span))
    assert small.name == "tree" and large.name == "ring over nodes"
    assert large.seconds == pytest.approx(
        2 * 511 / 512 * 1e11 / 1e11, rel=0.02
    )  # NVLink's 1e11 is the narrower


def test_the_two_level_all_to_all_wins_where_messages_to_peers_are_small():
    span = Span(16, 8, 50e9, 400e9)
    assert fastest(across_nodes_ways(NODE, NETWORK, "all_to_all", 1e4, span)).name == "two-level"
    assert fastest(across_nodes_ways(NODE, NETWORK, "all_to_all", 1e10, span)).name == "network, direct"


def test_efficiency_falls_with_nodes():
    falling = NetworkCurve(0.0, 0.0, 0.9, 0.1, 0.0, 0.0)
    rates = [falling.pipe(50e9, nodes, 0.0, 0.0).bytes_per_s for nodes in (2, 16, 128)]
    assert rates[0] == pytest.approx(45e9) and rates == sorted(rates, reverse=True)


@given(
    st.sampled_from(OPERATIONS),
    st.integers(9, 34),
    st.sampled_from([(0, 1), (0, 8), tuple(range(8)), tuple(range(0, 32, 8)), tuple(range(32))]),
)
def test_more_bytes_never_take_less_and_every_way_is_finite(operation, power, devices):
    costs = NcclCollectives(cluster(4))
    small = fastest(costs.ways(operation, 2.0**power, devices)).seconds
    large = fastest(costs.ways(operation, 2.0 ** (power + 1), devices)).seconds
    assert 0 < small < large < math.inf


def test_the_packaged_constants_are_physical_and_survive_the_file():
    profile = packaged_profile()
    assert set(profile.chips) == {"A100", "H100", "B200", "MI300X"}
    for chip in profile.chips.values():
        pipes = (chip.curve.ring_low, chip.curve.ring_bulk, chip.curve.direct_low, chip.curve.direct_bulk)
        assert all(pipe.bytes_per_s < chip.curve.link_bytes_per_s for pipe in pipes)
        assert chip.curve.ring_low.bytes_per_s < chip.curve.ring_bulk.bytes_per_s
    again = CollectiveProfile.from_document(json.loads(json.dumps(profile.to_document())))
    assert again == profile


def test_another_schema_or_a_missing_entry_is_refused():
    document = packaged_profile().to_document()
    with pytest.raises(SpecError, match="schema"):
        CollectiveProfile.from_document({**document, "schema": 99})
    del document["networks"]
    with pytest.raises(SpecError, match="network"):
        CollectiveProfile.from_document(document)


def test_known_rates_of_an_h100_node():
    """Published bus bandwidth of nccl-tests on HGX H100: about 440 to 480 GB/s with NVLink SHARP, 330 to 370 for gathers."""
    costs = NcclCollectives(Cluster("8xH100"))
    everyone, num_bytes = tuple(range(8)), 1024 * MIB
    reduced = 2 * 7 / 8 * num_bytes / seconds(costs, "all_reduce", num_bytes, everyone)
    gathered = 7 / 8 * num_bytes / seconds(costs, "all_gather", num_bytes, everyone)
    assert 400e9 < reduced < 490e9 and 310e9 < gathered < 380e9


def test_basis_and_interval_follow_what_was_measured():
    costs = NcclCollectives(cluster(4))
    exchange = Exchange(("dp",), algorithm="all_reduce")
    inside = costs.exchange_cost(exchange, 64 * MIB, tuple(range(8)))
    assert inside.basis == "interpolated" and 0 < inside.uncertainty < EXTRAPOLATED_UNCERTAINTY
    for num_bytes, devices in ((64 * MIB, tuple(range(16))), (2**40, tuple(range(8)))):
        cost = costs.exchange_cost(exchange, num_bytes, devices)
        assert cost.basis == "extrapolated" and cost.uncertainty >= EXTRAPOLATED_UNCERTAINTY
    strange = DeviceSpec("made up", 10**9, 1e12, {"bfloat16": 1e14})
    cost = NcclCollectives(cluster(1, device=strange)).exchange_cost(exchange, MIB, (0, 1))
    assert cost.basis == "never seen" and cost.uncertainty >= UNKNOWN_UNCERTAINTY


def test_a_relative_of_a_measured_chip_is_extrapolated():
    relative = DeviceSpec("H200", 141 * 10**9, 4.8e12, {"bfloat16": 1e15})
    cost = NcclCollectives(cluster(1, device=relative)).exchange_cost(
        Exchange(("dp",), algorithm="ring"), MIB, (0, 1)
    )
    assert cost.basis == "extrapolated"


def test_half_the_link_is_about_half_the_rate():
    levels = (Level("node", 8, 225e9, 2e-6),)
    halved = NcclCollectives(ClusterSpec("halved", (GPU,) * 8, levels))
    full = NcclCollectives(cluster(1))
    ratio = seconds(halved, "all_reduce", 2**36, (0, 1)) / seconds(full, "all_reduce", 2**36, (0, 1))
    assert 1.7 < ratio < 2.0  # the copy of the own block is in memory, not on the link


def test_the_network_is_the_limit_of_few_members_a_node_and_scales_with_its_nics():
    costs = NcclCollectives(cluster(2))
    one = seconds(costs, "all_reduce", 2**32, (0, 8))
    four = seconds(costs, "all_reduce", 2**32, (0, 1, 2, 3, 8, 9, 10, 11))
    assert one == pytest.approx(2**32 / 50e9, rel=0.15)
    assert one / four == pytest.approx(4 * 1 / 1.75, rel=0.1)  # four NICs, 1.75 times the wire bytes


def test_a_shared_uplink_and_an_explicit_link_narrow_the_network():
    levels = (Level("node", 8, 450e9, 2e-6), Level("network", 16, 50e9, 5e-6, attached="group"))
    shared = NcclCollectives(ClusterSpec("shared", (GPU,) * 16, levels))
    own = NcclCollectives(cluster(2))
    everyone = tuple(range(16))
    assert seconds(shared, "all_reduce", 2**32, everyone) > 5 * seconds(own, "all_reduce", 2**32, everyone)
    assert seconds(shared, "all_to_all", 2**32, everyone) > 6 * seconds(own, "all_to_all", 2**32, everyone)
    link = Link("device 0", "device 8", 5e9, 1e-6)
    wired = NcclCollectives(ClusterSpec("wired", (GPU,) * 16, cluster(2).levels, links=(link,)))
    message = Exchange(("pp",), (0, 1))
    slow = wired.exchange_cost(message, 2**30, (0, 8)).seconds
    assert slow > 8 * own.exchange_cost(message, 2**30, (0, 8)).seconds


def test_one_device_moves_nothing_and_processes_are_refused():
    costs = NcclCollectives(cluster(1))
    assert costs.exchange_cost(Exchange(("dp",), algorithm="ring"), 1e9, (3, 3)).seconds == 0.0
    with pytest.raises(SpecError, match="calibrate"):
        NcclCollectives(Cluster("2xcpu"))


def test_flows_over_nodes_spread_over_the_nics():
    costs = NcclCollectives(cluster(2))
    exchange = Exchange(("dp",), algorithm="all_reduce")
    devices = (0, 1, 8, 9)
    flows = costs.flows(exchange, 4e6, devices)
    crossing = [flow for flow in flows if flow.source // 8 != flow.target // 8]
    assert len(crossing) == 4 and all(flow.bytes == pytest.approx(2 * 3 / 4 * 4e6 / 2) for flow in crossing)
    assert {(flow.source, flow.target) for flow in flows} - {(a.source, a.target) for a in crossing} == {
        (0, 1),
        (8, 9),
    }
    inside = costs.flows(exchange, 4e6, (0, 1))
    assert [(flow.source, flow.target) for flow in inside] == [(0, 1), (1, 0)]


def test_tokens_reach_a_member_by_counting():
    assert member_probability(1, 8, 8) == pytest.approx(1 / 8)
    assert member_probability(8, 8, 8) == 1.0
    with pytest.raises(SpecError, match="divide"):
        member_probability(2, 9, 8)


def test_experts_are_limited_by_processors_then_by_the_link():
    curve = ExpertCurve(0.0, 1e9, 1e11, 2.0)
    by_sm = curve.seconds(1000, 1024, 8, 8, 8, 1)
    assert by_sm == pytest.approx(1000 * 1024 * 2 * 8 / 1e9, rel=1e-6)
    by_link = curve.seconds(1000, 1024, 8, 8, 8, 10**6)
    assert by_link == pytest.approx(1000 * 1024 * 2 * 7 / 1e11, rel=1e-2)
    with pytest.raises(SpecError, match="at least one"):
        curve.seconds(1, 1, 1, 8, 8, 0)


def test_a_ring_over_nodes_is_as_slow_as_the_link_between_neighbours_in_it() -> None:
    even = Cluster("4x8xH100")
    slow = tuple(Link(f"device {a}", f"device {b}", 1e9, 5e-6) for a, b in ((0, 16), (16, 0)))
    costs = NcclCollectives(ClusterSpec("slow", even.devices, even.levels, slow))
    ring, everyone = Exchange(("dp",), algorithm="ring"), Exchange(("dp",), algorithm="all_to_all")
    beside, apart = (0, 16, 8, 24), (0, 8, 16, 24)
    slowed = costs.exchange_cost(ring, 1e9, beside).seconds
    assert costs.exchange_cost(ring, 1e9, apart) == NcclCollectives(even).exchange_cost(ring, 1e9, apart)
    assert slowed > 10 * costs.exchange_cost(ring, 1e9, apart).seconds
    assert costs.exchange_cost(everyone, 1e9, apart) == costs.exchange_cost(everyone, 1e9, beside)
