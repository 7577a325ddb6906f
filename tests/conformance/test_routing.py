"""A routing of one's own says which links a transfer takes: seconds follow from these, and from who else takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.plan.plan import Plan
from tests.planned_case import LLAMA

GPUS = mw.Cluster("2x8xH100")
RATE = GPUS.levels[1].bandwidth_bytes_per_s
ALL_REDUCE = Exchange(("dp",), algorithm="ring")
OWN = """
from meshwright.specs.cluster.device import Link

def shared_uplinks(cluster, source, target):
    '''Two neighbouring rails of a node take one of its uplinks, of the rate of one NIC.'''
    node, network = cluster.levels
    if source // node.num_devices == target // node.num_devices:
        return cluster.by_levels(source, target)
    ends = [f"node {each // node.num_devices} uplink {each % node.num_devices // 2}" for each in (source, target)]
    rate = network.bandwidth_bytes_per_s
    return (Link(ends[0], "spine", rate, network.latency_s), Link("spine", ends[1], rate, 0.0))

def rails(cluster, source, target):
    '''A switch for each rail; from one rail to another over a spine of a quarter of the rate.'''
    node, network = cluster.levels
    if source // node.num_devices == target // node.num_devices:
        return cluster.by_levels(source, target)
    rail, other = (each % node.num_devices for each in (source, target))
    up = Link(f"device {source}", f"rail {rail}", network.bandwidth_bytes_per_s, network.latency_s)
    down = Link(f"rail {other}", f"device {target}", network.bandwidth_bytes_per_s, 0.0)
    over = Link(f"rail {rail}", f"rail {other}", network.bandwidth_bytes_per_s / 4, network.latency_s)
    return (up, down) if rail == other else (up, over, down)

def nowhere(cluster, source, target):
    return ()
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file of the user's with routings."""
    path = tmp_path / "ways.py"
    path.write_text(OWN)
    return str(path)


def test_the_cores_routing_is_listed_and_is_what_a_cluster_has() -> None:
    assert catalog.names("routings") == ("levels",) and GPUS.routing == "levels"
    assert catalog.filler("routing", "levels")(GPUS, 0, 9) == GPUS.path(0, 9)


def test_a_ring_over_shared_uplinks_is_one_over_nics_of_half_the_rate(own: str) -> None:
    """All devices: two rails take an uplink. Every second one: each has its own, as without the routing."""
    shared = NcclCollectives(replace(GPUS, routing=f"{own}:shared_uplinks"))
    half = replace(GPUS.levels[1], bandwidth_bytes_per_s=RATE / 2)
    slower, usual = NcclCollectives(replace(GPUS, levels=(GPUS.levels[0], half))), NcclCollectives(GPUS)
    for members, other in ((tuple(range(16)), slower), (tuple(range(0, 16, 2)), usual)):
        for exchange in (ALL_REDUCE, Exchange(("ep",), algorithm="all_to_all")):
            found, expected = (c.exchange_cost(exchange, 1e9, members).seconds for c in (shared, other))
            assert found == pytest.approx(expected, rel=1e-9), (exchange, members)
    assert usual.exchange_cost(ALL_REDUCE, 1e9, tuple(range(16))).seconds < 0.9 * found


def test_a_message_along_a_rail_is_as_fast_as_its_nic_and_across_as_the_spine(own: str) -> None:
    cluster = replace(GPUS, routing=f"{own}:rails", costs="roofline")
    assert cluster.bandwidth_bytes_per_s(0, 8) == RATE and cluster.bandwidth_bytes_per_s(0, 9) == RATE / 4
    assert cluster.latency_s(0, 9) == 2 * cluster.latency_s(0, 8)
    assert cluster.path(0, 3) == GPUS.path(0, 3) and cluster.path(4, 4) == ()


@pytest.mark.parametrize("costs", ["", "roofline"])
def test_messages_that_meet_on_an_uplink_share_it_in_every_prediction(costs: str, own: str) -> None:
    """Pipelines of two nodes, eight side by side: messages of two take one uplink, which moves the bytes of both."""
    seconds = {}
    for routing in ("levels", f"{own}:shared_uplinks"):
        cluster = replace(GPUS, costs=costs, routing=routing)
        model = LLAMA.changed(hidden_size=4096, max_sequence_length=4096)
        plan = Plan.of(model, cluster, mw.Workload(16, 4096), dtype="bfloat16", pp=2, dp=8)
        assert mw.check(plan).error is None
        trace = mw.simulate(plan, cluster=cluster)
        names = [effect.name for effect in trace.program.tables.effects]
        sends = [name.startswith("SEND") for name in names]
        rows = [row for row, e in enumerate(trace.program.columns.effect.tolist()) if sends[e]]
        seconds[routing] = max(float((trace.end_s - trace.start_s)[0][row]) for row in rows)
    usual, shared = seconds.values()
    num_bytes = 2 * 4096 * 4096  # tokens of hidden states in bfloat16
    assert shared == pytest.approx(2 * num_bytes / RATE, rel=0.01) and usual < 0.8 * shared


def test_plan_ranks_by_the_routing(own: str) -> None:
    """Shared uplinks make every plan that exchanges between nodes slower; it is saved with no word of them."""
    best = [
        mw.plan(
            "llama-3.2-1b", replace(GPUS, routing=routing), global_batch=64, seq=2048, fix={"pp": 1, "tp": 1}
        )[0]
        for routing in ("levels", f"{own}:shared_uplinks")
    ]
    assert best[1].step.value > best[0].step.value


def test_a_cluster_file_names_it_and_its_code_is_not_run_unasked(own: str, tmp_path: Path) -> None:
    text = (
        'schema = 1\nname = "ours"\nrouting = "ROUTING"\n[[devices]]\npreset = "H100"\ncount = 16\n'
        '[[levels]]\nname = "node"\nnum_devices = 8\nbandwidth = "450GB/s"\nlatency = "2us"\n'
        '[[levels]]\nname = "network"\nnum_devices = 16\nbandwidth = "50GB/s"\nlatency = "5us"\n'
    )
    path = tmp_path / "cluster.toml"
    path.write_text(text.replace("ROUTING", "levels"))
    assert ClusterSpec.path(mw.Cluster.load(path), 0, 8) == mw.Cluster.load(path).by_levels(0, 8)
    path.write_text(text.replace("ROUTING", f"{own}:rails"))
    cluster = mw.Cluster.load(path)
    with pytest.raises(PlanError, match="--trust"):
        cluster.path(0, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.specs.slot.TRUST.is_given", True)
        assert len(cluster.path(0, 9)) == 3


def test_what_is_no_routing_is_refused(own: str) -> None:
    with pytest.raises(PlanError, match="levels"):
        replace(GPUS, routing="ecmp").path(0, 8)
    with pytest.raises(SpecError, match="a Link or more"):
        replace(GPUS, routing=f"{own}:nowhere").path(0, 8)
