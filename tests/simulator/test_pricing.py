"""Pricing of works that exchange inside: what waits, what hides, and which lists cost the same."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.costs.cost import Cost, Flow
from meshwright.ir import wire
from meshwright.ir.table import Exchange, Inner, Work
from meshwright.lowering.place import place
from meshwright.simulator import price
from meshwright.simulator.pricing import with_inner
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.operator import Operator
from meshwright.specs.plan.prediction import Basis
from meshwright.stage.mesh import device_order
from tests.lowering.plans import DENSE, EXPERTS, NamedWork, lowered, plan

TP, CP = Exchange(("tp",), algorithm="all_reduce"), Exchange(("cp",), algorithm="all_gather")
NODE = 4


class OperatorSeconds:
    """A second a FLOP."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        """The sum over operators."""
        return Cost(sum(op.total_flops for op in work.operators))


class NodeLinks:
    """A second a byte within a node, ten between nodes; never seen on more than two devices. An exchange needs a share of the
    device."""

    def __init__(self, compute_share: float = 0.0) -> None:
        self.compute_share = compute_share
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """By bytes and the nodes of the members."""
        self.asked.append((exchange.algorithm, devices))
        factor = 10.0 if len({device // NODE for device in devices}) > 1 else 1.0
        basis: Basis = "never seen" if len(devices) > 2 else "interpolated"
        return Cost(num_bytes * factor, compute_share=self.compute_share, basis=basis)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """They share no link."""
        return ()


def work(*inner: Inner) -> Work:
    """5 s of products (twice 2 s and once 1 s), 3 s of attention, 2 s of norms."""
    operators = (
        Operator("matmul", 2.0, 0.0, (1, 1, 1), 2),
        Operator("matmul", 1.0, 0.0, (1, 1, 2)),
        Operator("attention", 3.0, 0.0, (1, 1, 1, 1, 1, 1)),
        Operator("norm", 2.0, 0.0, (1, 1)),
    )
    return Work("F", operators=operators, inner=inner)


def seconds(*inner: Inner, compute_share: float = 0.0) -> float:
    given = work(*inner)
    cost = OperatorSeconds().cost(given)
    assert cost.seconds == 10
    return with_inner(
        cost, given, OperatorSeconds(), NodeLinks(compute_share), [(0, 1)] * len(inner), None
    ).seconds


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ((), 10),
        ((Inner(TP, 1.5),), 11.5),
        ((Inner(TP, 1.5, count=4),), 16),
        ((Inner(TP, 1.5), Inner(CP, 2.0)), 13.5),
        ((Inner(TP, 4.0, beside="matmul"),), 10),  # under 5 s of products
        ((Inner(TP, 4.0, count=2, beside="matmul"),), 13),  # 8 s beside 5
        ((Inner(TP, 4.0, beside="matmul"), Inner(TP, 2.0, beside="matmul")), 11),  # together 6 beside 5
        ((Inner(CP, 4.0, beside="attention"),), 11),
        ((Inner(TP, 4.0, beside="matmul"), Inner(CP, 4.0, beside="attention")), 11),  # each its own
        ((Inner(TP, 4.0, beside="matmul"), Inner(TP, 4.0)), 14),
        ((Inner(TP, 4.0, beside="loss"),), 14),  # there is none to hide behind
    ],
)
def test_only_what_operators_do_not_cover_is_added(inner: tuple[Inner, ...], expected: float) -> None:
    assert seconds(*inner) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ((Inner(TP, 4.0),), 14),  # by itself it takes its time
        ((Inner(TP, 4.0, beside="matmul"),), 13),  # 4 s beside products, which lose three quarters of them
        ((Inner(TP, 4.0, count=2, beside="matmul"),), 16.75),  # 5 s beside, then 3 s alone
        ((Inner(TP, 0.0, beside="matmul"),), 10),
    ],
)
def test_an_exchange_that_needs_the_device_slows_what_it_runs_beside(
    inner: tuple[Inner, ...], expected: float
) -> None:
    assert seconds(*inner, compute_share=0.75) == pytest.approx(expected)


def test_the_weakest_basis_is_kept() -> None:
    given = work(Inner(TP, 1.0), Inner(CP, 1.0))
    cost = Cost(10.0, basis="measured here")
    ends = [(0, 1), (0, 1, 2)]
    assert with_inner(cost, given, OperatorSeconds(), NodeLinks(), ends, None).basis == "never seen"
    assert with_inner(cost, given, OperatorSeconds(), NodeLinks(), [(0, 1)] * 2, None).basis == "interpolated"


def forward_seconds(chosen: Plan, nodes: str, links: NodeLinks) -> list[float]:
    """Of F on every list."""
    program = lowered(chosen)
    cluster = Cluster(nodes)
    prices = price(wire(program), NamedWork(), links, place(program, cluster, device_order(chosen)))
    first = [
        next(view for view in program.instructions(d) if view.name == "F") for d in range(program.num_lists)
    ]
    return [prices.costs[prices.cost_of_row[view.row]].seconds for view in first]


def four_stages(cluster: str, **choices: Any) -> Plan:
    return Plan.of(DENSE, Cluster(cluster), Workload(4, 64), pp=4, **choices)


@pytest.mark.parametrize(
    ("order", "straddles"),
    [
        ((), (False, False)),
        ((0, 1, 2, 4, 3, 5, 6, 7), (True, True)),
        ((0, 1, 2, 4, 6, 7, 3, 5), (True, False)),  # 2 and 6 stand at the same place of their nodes
        ((0, 1, 6, 7, 2, 4, 3, 5), (False, True)),
    ],
)
def test_groups_that_straddle_nodes_have_their_own_price(
    order: tuple[int, ...], straddles: tuple[bool, bool]
) -> None:
    """Stages 1 and 2 do the same; only where their tensor-parallel groups lie tells them apart."""
    links = NodeLinks()
    middle = forward_seconds(four_stages("2x4xH100", tp=2, device_order=order), "2x4xH100", links)[1:3]
    inside, between = (
        forward_seconds(four_stages("2x4xH100", tp=2, device_order=o), "2x4xH100", links)[1]
        for o in ((), (0, 1, 2, 4, 3, 5, 6, 7))
    )
    assert inside < between
    assert middle == [between if does else inside for does in straddles]


def test_alike_groups_are_asked_once() -> None:
    links = NodeLinks()
    middle = forward_seconds(four_stages("2x4xH100", tp=2), "2x4xH100", links)[1:3]
    assert middle[0] == middle[1]
    groups = [devices for algorithm, devices in links.asked if algorithm == "all_reduce"]
    assert set(groups) <= {(0, 1), (2, 3), (4, 5), (6, 7)} and (2, 3) in groups


def test_members_are_those_of_the_group() -> None:
    links = NodeLinks()
    chosen = plan(EXPERTS, pp=2, dp=2, tp=2, ep=4)
    forward_seconds(chosen, "2x4xH100", links)
    asked = {(algorithm, frozenset(devices)) for algorithm, devices in links.asked}
    tokens = {devices for algorithm, devices in asked if algorithm.startswith("all_to_all")}
    assert tokens == {frozenset(range(4)), frozenset(range(4, 8))}
    assert ("all_reduce", frozenset({0, 1})) in asked


def test_without_a_placement_nothing_inside_is_priced() -> None:
    program = wire(lowered(plan(pp=2, tp=2)))
    bare = wire(lowered(plan(pp=2, tp=2)).with_tables(
        works=tuple(each._replace(inner=()) for each in program.program.tables.works)
    ))  # fmt: skip
    ours, theirs = (price(wiring, NamedWork(), NodeLinks(), None) for wiring in (program, bare))
    assert ours.seconds[ours.cost_of_row].tolist() == theirs.seconds[theirs.cost_of_row].tolist()
