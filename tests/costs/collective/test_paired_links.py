"""Nodes whose devices have a link for each pair: a group of n has n - 1 links, in curves, data sheets, plans and flows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.cost import CommunicationModel
from meshwright.costs.roofline import Roofline
from meshwright.ir.table import Exchange
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, Workload

LARGE_BYTES = 64e9  # in which latencies are lost
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def wired(name: str, wiring: str) -> ClusterSpec:
    """A cluster with another wiring of its nodes, its links' rate kept."""
    cluster = Cluster(name)
    return replace(cluster, levels=(replace(cluster.levels[0], wiring=wiring), *cluster.levels[1:]))


def seconds(costs: CommunicationModel, operation: str, num_members: int, num_bytes: float) -> float:
    exchange = Exchange(("tp",), algorithm=operation, dtype="bfloat16")
    return costs.exchange_cost(exchange, num_bytes, tuple(range(num_members))).seconds


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("model", [NcclCollectives, Roofline], ids=["curve", "data sheet"])
def test_a_collective_takes_as_long_as_a_parts_way_over_one_link(
    model: type[CommunicationModel], operation: str
) -> None:
    """n - 1 parts of S / n over n - 1 links: twice the members, half the seconds; on a switch they take longer."""
    costs = model(Cluster("8xMI300X"))
    two, four, eight = (seconds(costs, operation, num, LARGE_BYTES) for num in (2, 4, 8))
    assert [two / four, four / eight] == pytest.approx([2, 2], rel=0.02)
    switch = model(wired("8xMI300X", "switch"))
    assert seconds(switch, operation, 8, LARGE_BYTES) / seconds(
        switch, operation, 2, LARGE_BYTES
    ) == pytest.approx(7 / 4, rel=0.02)


@pytest.mark.parametrize("num_members", [2, 4, 8])
def test_flows_fill_every_link_between_the_members_alike_and_no_other(num_members: int) -> None:
    cluster, devices = Cluster("8xMI300X"), tuple(range(num_members))
    flows = NcclCollectives(cluster).flows(Exchange(("tp",), algorithm="all_reduce"), 8e6, devices)
    links = Counter(link.group for flow in flows for link in cluster.path(flow.source, flow.target))
    assert len(links) == num_members * (num_members - 1) and set(links.values()) == {1}
    assert {flow.bytes for flow in flows} == {2 * 8e6 / num_members}


def test_a_message_has_one_link_whatever_its_ends() -> None:
    costs, exchange = NcclCollectives(Cluster("8xMI300X")), Exchange(("pp",), (0, 1))
    found = {costs.exchange_cost(exchange, LARGE_BYTES, ends).seconds for ends in ((0, 1), (0, 7), (5, 2))}
    (alone,) = found
    assert 0.6 * 64e9 < LARGE_BYTES / alone < 0.8 * 64e9


def test_the_chain_through_a_node_of_pairs_is_a_path_for_each_member() -> None:
    flows = NcclCollectives(Cluster("2x8xMI300X")).flows(
        Exchange(("dp",), algorithm="all_reduce"), 8e6, tuple(range(16))
    )
    inside = {flow.bytes for flow in flows if flow.source // 8 == flow.target // 8}
    (each,) = inside
    assert each == pytest.approx(2 * 15 / 16 * 8e6 / 8)


def planned(tp: int) -> Plan:
    model = ModelSpec.decoder(4, 4096, 32, intermediate_size=16384, max_sequence_length=4096)
    return Plan.of(model, Cluster("8xMI300X"), Workload(32, 4096), tp=tp, microbatch_size=8, **MIXED)


def test_exchanges_of_plans_obey_the_links_in_closed_form_and_events() -> None:
    """Messages of tensor parallelism are as large for any degree: with two GPUs they take 4 and 2 times what eight take,
    where a switch would have them 7/4 and 7/6 faster."""
    spent, cluster = {}, Cluster("8xMI300X")
    for tp in (2, 4, 8):
        plan = planned(tp)
        found = predict(plan, cluster, extrapolate=True)
        simulated = api.simulate(plan, extrapolate=True).metadata["step"]["value"]
        assert simulated == pytest.approx(found.refined().step.value, rel=1e-9)
        spent[tp] = found.parts["exchanges inside, host"] / plan.num_microbatches
    assert spent[2] / spent[8] == pytest.approx(4, rel=0.06)
    assert spent[4] / spent[8] == pytest.approx(2, rel=0.06)
