"""Tests of costs/collective/collective.py: ring formulas, and the bytes that go around."""

import pytest

from meshwright.costs.collective.collective import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    collective_s,
    collective_table,
    flows_between,
    reduce_scatter_s,
    rescaled_s,
    send_s,
    sum_flows,
    way_of,
)
from meshwright.ir.table import Exchange
from meshwright.specs.error import SpecError


@pytest.mark.parametrize("members", [2, 3, 8])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(members):
    parts = reduce_scatter_s(1e6, members, 1e-5, 1e9) + all_gather_s(1e6, members, 1e-5, 1e9)
    assert all_reduce_s(1e6, members, 1e-5, 1e9) == pytest.approx(parts)


def test_known_values():
    assert send_s(1e6, 1e-5, 1e9) == pytest.approx(1.01e-3)
    assert all_reduce_s(8e6, 8, 1e-5, 1e9) == pytest.approx(14e-5 + 14e-3)
    assert all_to_all_s(4e6, 4, 0.0, 1e9) == pytest.approx(3e-3)
    assert all_reduce_s(8e6, 1, 1e-5, 1e9) == 0.0


def test_rescaling_equals_the_formula():
    two = all_reduce_s(1e6, 2, 1e-5, 1e9)
    assert rescaled_s(two, 2e-5, 6, 2) == pytest.approx(all_reduce_s(1e6, 6, 1e-5, 1e9))
    assert rescaled_s(two, 2e-5, 2, 2) == two


def test_table_of_an_exchange():
    assert collective_table(Exchange(("pp",), (0, 1)), 2) == "send_receive"
    assert collective_table(Exchange(("cp",), shift=1), 4) == "send_receive"
    assert collective_table(Exchange(("dp",), algorithm="ring"), 4) == "all_reduce"
    assert collective_table(Exchange(("dp",), algorithm="all_gather"), 4) == "all_gather"
    with pytest.raises(SpecError, match="gossip.*all_reduce"):
        collective_table(Exchange(("dp",), algorithm="gossip"), 4)
    with pytest.raises(SpecError, match="gossip"):
        collective_s("gossip", 1.0, 2, 0.0, 1.0)


def test_flows_of_a_ring_add_up_to_what_it_moves():
    flows = flows_between(Exchange(("dp",), algorithm="ring"), 800.0, (0, 1, 2, 3))
    assert [(flow.source, flow.target) for flow in flows] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert all(flow.bytes == pytest.approx(2 * 3 / 4 * 800) for flow in flows)
    assert flows_between(Exchange(("pp",), (2, 5)), 7.0, (2, 5)) == ((2, 5, 7.0),)
    assert flows_between(Exchange(("pp",), (2, 2)), 7.0, (2, 2)) == ()
    pairs = flows_between(Exchange(("ep",), algorithm="all_to_all"), 30.0, (0, 1, 2))
    assert len(pairs) == 6 and {flow.bytes for flow in pairs} == {10.0}


def test_a_sum_says_behind_the_dot_how_it_is_made():
    for algorithm, way in (
        ("all_reduce.star", "star"),
        ("all_reduce", "ring"),
        ("all_reduce.two_level", "ring"),
    ):
        assert way_of(Exchange(("tp",), algorithm=algorithm)) == way
        assert collective_table(Exchange(("tp",), algorithm=algorithm), 4) == "all_reduce"


def test_a_star_meets_at_one_device_and_a_tree_at_its_parents():
    star, tree = (sum_flows(way, 5.0, (4, 5, 6, 7)) for way in ("star", "tree"))
    assert {(one, other) for one, other, _ in star} == {(n, 4) for n in (5, 6, 7)} | {
        (4, n) for n in (5, 6, 7)
    }
    assert {(one, other) for one, other, _ in tree if one > other} == {(5, 4), (6, 4), (7, 5)}
    assert {num_bytes for _, _, num_bytes in star + tree} == {5.0}
