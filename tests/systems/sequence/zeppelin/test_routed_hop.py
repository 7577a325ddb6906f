"""A hop over all NICs, as a program: legal, simulated as its formula says, and 0.8 m times as fast where pieces follow."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.verify import verify
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.systems.sequence.zeppelin.routed_hop import SEND, hop_seconds, routed_hop, routed_s

CLUSTER = Cluster("2x8xH100", nic="200Gb/s")
NUM_BYTES = 1.28e8


def test_pieces_go_over_every_nic_once_a_round() -> None:
    program = routed_hop(NUM_BYTES, 4, 4, rounds=2)
    verify(program)
    names = [program.tables.effects[e].name for e in program.columns.effect.tolist()]
    # of eight pieces six are handed out and gathered; all eight cross
    assert names.count(SEND.name) == 6 + 8 + 6
    exchanges = program.tables.exchanges
    crossing = [one.ends for one in exchanges if one.ends and one.ends[0] // 4 != one.ends[1] // 4]
    assert sorted(crossing) == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("rounds", [1, 4, 16])
def test_simulated_seconds_are_the_formulas(rounds: int) -> None:
    nic, node = (level.bandwidth_bytes_per_s for level in reversed(CLUSTER.levels))
    assert node / nic == 18
    direct_s = hop_seconds(CLUSTER, NUM_BYTES, 1)
    ours = direct_s / hop_seconds(CLUSTER, NUM_BYTES, 8, rounds)
    assert ours == pytest.approx((NUM_BYTES / nic) / routed_s(NUM_BYTES, 8, nic, node, rounds), rel=0.1)


def test_eight_nics_are_six_times_as_fast_where_pieces_follow_each_other() -> None:
    direct_s = hop_seconds(CLUSTER, NUM_BYTES, 1)
    assert direct_s / hop_seconds(CLUSTER, NUM_BYTES, 8, rounds=8) >= 0.8 * 8
    slow = Cluster("2x8xH100", nic="3.6Tb/s")  # a node's link is a NIC's: nothing is gained by handing out
    assert hop_seconds(slow, NUM_BYTES, 8, rounds=1) > hop_seconds(slow, NUM_BYTES, 1)


def test_a_node_has_as_many_nics_as_devices_at_most() -> None:
    with pytest.raises(PlanError, match="9 NICs"):
        routed_hop(NUM_BYTES, 8, 9)
