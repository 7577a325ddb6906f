"""Node placement: costs of orders by hand, moves that keep every node, annealing against all orders."""

from __future__ import annotations

import itertools
import random

import pytest

from meshwright.specs.error import SpecError
from meshwright.systems.planning.pipette.card import best_of_orders_s, order_costs
from meshwright.systems.planning.pipette.mechanism import MOVES, NodeOrderCost, anneal, pipeline_s
from meshwright.systems.planning.pipette.study import ISLAND_OF_NODE

INF = float("inf")
# Rates in bytes a second; the way from 1 to 0 is half as fast as the way there.
RATES = (
    (INF, 10.0, 5.0, 2.0),
    (5.0, INF, 2.0, 1.0),
    (5.0, 2.0, INF, 10.0),
    (2.0, 1.0, 10.0, INF),
)


def test_every_run_of_stages_pays_a_round_trip_each_as_many_microbatches_as_it_has_stages() -> None:
    assert pipeline_s([3.0], [], 8) == pytest.approx(24.0)
    # equal: (24 + 1.4) there and back, then 23 at a distance of (24 + 1.4) / 8
    assert pipeline_s([3.0] * 8, [0.2] * 7, 24) == pytest.approx(25.4 + 23 * 25.4 / 8)
    # a long stage hides what is shorter than its lead; a slow hop is between two stages
    assert pipeline_s([3.0, 6.0], [1.0], 5) == pytest.approx(10.0 + 4 * 6.0)
    assert pipeline_s([3.0, 3.0, 3.0], [4.0, 0.0], 5) == pytest.approx(13.0 + 4 * (3 + 4 + 3) / 2)


def test_a_hop_is_paid_there_and_back_and_the_slowest_pipeline_counts() -> None:
    cost = NodeOrderCost(RATES, (0.0, 0.0), 3, message_bytes=10.0)
    assert cost.round_trip_s((0, 1, 2, 3)) == pytest.approx(10 / 10 + 10 / 5)
    assert cost.round_trip_s((0, 3, 2, 1)) == pytest.approx(10.0)  # 10 / 2 twice on both
    assert cost((0, 1, 2, 3)) == pytest.approx(3.0 + 2 * 3.0 / 2)


def test_gradients_go_round_the_slowest_link_of_a_ring() -> None:
    cost = NodeOrderCost(RATES, (1.0,), 1, 0.0, gradient_bytes=40.0)
    assert cost.reduction_s((0, 1, 2, 3)) == pytest.approx(2 * 3 / 4 * 40.0 / 2.0)  # 3 -> 0 and 1 -> 2
    assert cost.reduction_s((0, 2, 1, 3)) == pytest.approx(2 * 3 / 4 * 40.0 / 1.0)  # 1 -> 3
    assert NodeOrderCost(RATES, (1.0,) * 4, 1, 10.0, gradient_bytes=40.0).reduction_s((0, 1, 2, 3)) == 0.0


def test_a_later_stage_reduces_while_earlier_ones_still_run() -> None:
    order = (0, 1, 2, 3)  # first stages on 0 and 2, second ones on 1 and 3
    first = NodeOrderCost(RATES, (3.0, 3.0), 1, 0.0, gradient_bytes=40.0)
    both = NodeOrderCost(RATES, (3.0, 3.0), 1, 0.0, gradient_bytes=40.0, num_reduced=2)
    assert first.reduction_s(order) == pytest.approx(40.0 / 5)
    assert both.reduction_s(order) == pytest.approx(40.0 / 1 - 2.0)  # ahead by the first stage's backward


def test_without_a_placement_nodes_follow_each_other_stage_by_stage() -> None:
    cost = NodeOrderCost(RATES, (1.0, 1.0), 1, 1.0)
    assert cost.numbered == (0, 2, 1, 3)  # stage 0 on nodes 0 and 1, of both pipelines


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("num_nodes", [2, 3, 8])
def test_moves_keep_every_node_and_leave_the_order_they_were_given(move: object, num_nodes: int) -> None:
    assert callable(move)
    generator, order = random.Random(1), list(range(num_nodes))
    results = [move(order, generator) for _ in range(200)]
    assert order == list(range(num_nodes)) and all(sorted(result) == order for result in results)
    assert num_nodes == 2 or any(result != order for result in results)  # of two, all may be one route


@pytest.mark.parametrize("pp", [8])
@pytest.mark.parametrize("seed", [0])
def test_annealing_finds_the_best_of_all_orders_on_two_islands(pp: int, seed: int) -> None:
    cost = order_costs(pp, "islands")
    assert cost(anneal(cost, seed=seed)) == pytest.approx(best_of_orders_s(pp, "islands"), rel=1e-12)
    assert cost(cost.numbered) > best_of_orders_s(pp, "islands")


def test_one_pipeline_crosses_between_the_islands_once() -> None:
    islands = [ISLAND_OF_NODE[node] for node in anneal(order_costs(8, "islands"))]
    assert sum(a != b for a, b in itertools.pairwise(islands)) == 1


def test_equal_seeds_give_equal_orders_and_even_links_the_first() -> None:
    cost = order_costs(4, "drawn")
    assert anneal(cost, seed=3) == anneal(cost, seed=3)
    even = tuple(tuple(INF if a == b else 1.0 for b in range(4)) for a in range(4))
    assert anneal(NodeOrderCost(even, (1.0, 1.0), 1, 1.0)) == (0, 2, 1, 3)
    assert anneal(NodeOrderCost(((INF,),), (1.0,), 1, 1.0)) == (0,)


def test_annealing_never_ends_worse_than_it_began() -> None:
    cost = order_costs(8, "drawn")
    assert all(cost(anneal(cost, seed=seed, num_proposals=5)) <= cost(cost.numbered) for seed in range(20))


@pytest.mark.parametrize(
    ("rates", "pp"), [((), 1), (RATES, 3), (RATES, 0), (RATES[:2], 2), (((INF, 0.0), (1.0, INF)), 2)]
)
def test_what_cannot_be_placed_is_refused(rates: tuple[tuple[float, ...], ...], pp: int) -> None:
    with pytest.raises(SpecError):
        NodeOrderCost(rates, (1.0,) * pp, 1, 1.0)
