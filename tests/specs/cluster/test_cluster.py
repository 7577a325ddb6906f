"""Clusters: levels, directed paths, shared capacities."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import ClusterSpec, Level, Link, SpecError, load_device

H100 = load_device("H100")
NODE = Level("node", 4, 400e9, 2e-6)
NETWORK = Level("rack", 8, 50e9, 5e-6)
SPINE = Level("spine", 16, 100e9, 10e-6, attached="group")
CLUSTER = ClusterSpec("test", (H100,) * 16, (NODE, NETWORK, SPINE))


def ends(path):
    return [(link.source, link.target) for link in path]


def test_path_within_a_node_and_across():
    assert ends(CLUSTER.path(0, 3)) == [("device 0", "node 0"), ("node 0", "device 3")]
    assert ends(CLUSTER.path(0, 5)) == [("device 0", "rack 0"), ("rack 0", "device 5")]
    assert ends(CLUSTER.path(1, 9)) == [
        ("device 1", "rack 0"),
        ("rack 0", "spine 0"),
        ("spine 0", "rack 1"),
        ("rack 1", "device 9"),
    ]


PAIRS = Level("node", 4, 64e9, 2e-6, wiring="pairs")


def test_devices_in_pairs_have_a_link_each_and_groups_those_between_them():
    cluster = ClusterSpec("mesh", (H100,) * 16, (PAIRS, NETWORK, SPINE))
    assert ends(cluster.path(1, 3)) == [("device 1", "device 3")] and cluster.latency_s(1, 3) == 2e-6
    assert cluster.bandwidth_bytes_per_s(1, 3) == 64e9 and cluster.bandwidth_bytes_per_s(3, 4) == 50e9
    assert [PAIRS.group_bytes_per_s(num) for num in (2, 3, 4)] == [64e9, 128e9, 192e9]
    assert [NODE.group_bytes_per_s(num) for num in (2, 4)] == [400e9, 400e9]
    assert cluster.is_paired((0, 2, 3)) and not cluster.is_paired((0, 4)) and not CLUSTER.is_paired((0, 1))


def test_an_uplink_of_a_node_of_pairs_is_reached_without_a_switch():
    cluster = ClusterSpec("mesh", (H100,) * 8, (PAIRS, Level("rack", 8, 50e9, 5e-6, attached="group")))
    assert ends(cluster.path(0, 5)) == [("node 0", "rack 0"), ("rack 0", "node 1")]


@pytest.mark.parametrize(
    "levels",
    [
        (replace(PAIRS, is_shared=True), NETWORK, SPINE),
        (NODE, replace(NETWORK, wiring="pairs"), SPINE),
        (NODE, NETWORK, replace(SPINE, wiring="torus")),
        (NODE, NETWORK, replace(SPINE, fabric="wool")),
    ],
)
def test_pairs_that_share_or_are_no_devices_and_unknown_fabrics_are_refused(levels):
    with pytest.raises(SpecError, match="pairs|torus|wool"):
        ClusterSpec("mesh", (H100,) * 16, levels)


def test_level_bandwidth_and_latency_between_devices():
    assert [CLUSTER.level_between(0, other).name for other in (1, 4, 8)] == ["node", "rack", "spine"]
    assert CLUSTER.level_between(2, 2) is None and CLUSTER.path(2, 2) == ()
    assert CLUSTER.bandwidth_bytes_per_s(1, 9) == 50e9
    assert CLUSTER.latency_s(0, 3) == 2e-6 and CLUSTER.latency_s(1, 9) == pytest.approx(15e-6)


def test_devices_behind_one_uplink_share_it_and_directions_do_not():
    up = [link for link in CLUSTER.path(0, 9) if link.target == "spine 0"]
    same = [link for link in CLUSTER.path(3, 12) if link.target == "spine 0"]
    back = [link for link in CLUSTER.path(9, 0) if link.target == "rack 0"]
    assert up == same and up[0].group != back[0].group


@given(st.integers(0, 15), st.integers(0, 15))
def test_a_path_joins_its_ends_without_a_gap(source, target):
    path = CLUSTER.path(source, target)
    if source == target:
        assert path == ()
        return
    assert path[0].source == f"device {source}" and path[-1].target == f"device {target}"
    assert all(before.target == after.source for before, after in pairwise(path))
    assert len({link.group for link in path}) == len(path)


def test_a_bus_is_one_capacity_for_all():
    bus = ClusterSpec("bus", (H100,) * 2, (Level("node", 2, 1e9, 0.0, is_shared=True),))
    assert len({link.group for link in (*bus.path(0, 1), *bus.path(1, 0))}) == 1


def test_explicit_links_override_one_direction():
    link = Link("device 0", "device 1", 1e9, 1e-6)
    cluster = ClusterSpec("test", (H100,) * 4, (NODE,), links=(link,))
    assert cluster.path(0, 1) == (link,) and len(cluster.path(1, 0)) == 2


@pytest.mark.parametrize(
    ("devices", "levels", "links"),
    [
        ((), (NODE,), ()),
        ((H100,) * 8, (NODE,), ()),
        ((H100,) * 4, (Level("a", 3, 1.0, 0.0), Level("b", 4, 1.0, 0.0)), ()),
        ((H100,) * 4, (Level("a", 4, 0.0, 0.0),), ()),
        ((H100,) * 4, (NODE,), (Link("device 0", "device 9", 1.0, 0.0),)),
    ],
)
def test_nonsense_is_refused(devices, levels, links):
    with pytest.raises(SpecError) as caught:
        ClusterSpec("bad", devices, levels, links)
    assert caught.value.allowed


def test_devices_are_numbered_from_zero():
    assert CLUSTER.device(15) is H100 and CLUSTER.is_homogeneous and CLUSTER.memory_bytes == 81_559 * 2**20
    with pytest.raises(SpecError, match="no device 16"):
        CLUSTER.device(16)
