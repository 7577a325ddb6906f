"""Pipette: T by hand and against simulated increments; placements in plans; nothing recommended overflows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from meshwright.catalog import filler
from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, PlanError, SpecError, UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.planning.microbatch_seconds import microbatch_s
from meshwright.systems.planning.pipette import card as pipette
from meshwright.systems.planning.pipette import mechanism, study
from meshwright.systems.planning.pipette.mechanism import (
    NodeOrderCost,
    Recommendation,
    Reduced,
    attained_rates,
    devices_of,
    first_gradient_bytes,
    message_bytes,
    order_cost,
    recommended,
)
from meshwright.systems.planning.pipette.study import ISLAND_OF_NODE, shares, simulated_step_s, uneven_cluster

QWEN = load_model("qwen3-8b")
SMALL = Workload(64, 2048)


def island_cluster() -> ClusterSpec:
    return uneven_cluster("8x8xA100-80", "islands")


def island_plan(model: str, pp: int, tp: int, reduced: Reduced = "all") -> Recommendation:
    cluster, degrees = island_cluster(), {"pp": pp, "tp": tp}
    plan = Plan.of(load_model(model), cluster, Workload(256, 2048), **{**mechanism.DEFAULTS, **degrees})
    return recommended(plan, cluster, reduced=reduced)


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("pipette")
    assert "2405.18093" in card.paper and card.is_simulated and not card.is_executed
    assert sum(not claim.is_evidence for claim in card.claims) == 8


def test_what_messages_add_is_predicted_where_a_long_stage_hides_them_and_where_a_hop_is_slow() -> None:
    found = reproduce("pipette", only="what messages add")["claims"]
    assert len(found) == 9 and all(each["passed"] and each["closer_than_null"] for each in found)


def test_what_is_recommended_saves_what_the_latency_says() -> None:
    job: dict[str, Any] = {"model": "llama-2-70b", "batch": 256, "seq": 4096, "cluster": "8x8xA100-80"}
    assert study.first_recommended(**job, links="islands").plan.pp == 8
    assert study.saving_ratio(**job, links="islands") == pytest.approx(1.0, abs=0.05)
    assert study.saving_counted_once(**job, links="islands") < 0.1  # AMP's term forgets the hidden path


@pytest.mark.slow
def test_every_claim_holds() -> None:
    claims = reproduce("pipette")["claims"]
    assert len(claims) == 31 and [c["claim"] for c in claims if not c["passed"]] == []
    predicted = [c for c in claims if c["kind"] == "predicted"]
    assert len(predicted) == 23 and sum(bool(c["closer_than_null"]) for c in predicted) == 20


def test_messages_add_what_pipette_says_to_first_order_and_four_times_what_amp_says() -> None:
    simulated = pipette.simulated_increment_s(8, 24)
    assert simulated == pytest.approx(5.4)
    assert pipette.increment_s("pipette", 8, 24) == pytest.approx(4.2)
    assert pipette.increment_s("amp", 8, 24) == pytest.approx(1.4)
    assert abs(4.2 / simulated - 1) < 0.25 and 3.5 < simulated / 1.4 < 4.5


def test_whole_steps_by_both_models() -> None:
    # p (f + w) = 24 three times, one 7 (f + w) to fill; 3 round trips of 1.4 or one
    assert pipette.pipette_s(8, 24, 3.0, 1.4) == pytest.approx(3 * (24 + 1.4) + 21)
    assert pipette.amp_s(8, 24, 3.0, 1.4) == pytest.approx(31 * 3 + 1.4)
    assert pipette.pipette_s(8, 24, 3.0, 1.4, 0.5) - pipette.pipette_s(8, 24, 3.0, 1.4) == pytest.approx(0.5)
    # a group that is not full counts: three quarters of a round trip more
    assert pipette.pipette_s(8, 30, 3.0, 1.4) == pytest.approx(37 * 3 + 3.75 * 1.4)


def test_with_one_group_of_microbatches_half_is_missing() -> None:
    assert pipette.increment_ratio(8, 8) < 0.6  # what the card says under "Seen here"


def test_an_unknown_model_or_matrix_is_named() -> None:
    with pytest.raises(UnknownNameError, match="latency model"):
        pipette.increment_s("varuna", 8, 24)
    with pytest.raises(UnknownNameError, match="kind of links"):
        shares("rings", 8)


def test_the_space_is_the_papers() -> None:
    plans = list(mechanism.configurations(QWEN, Cluster("4x8xA100-80"), SMALL))
    assert {(p.pp, p.tp, p.microbatch_size) for p in plans} >= {(1, 1, 1), (4, 8, 8), (2, 4, 2)}
    assert all(p.num_devices == 32 and p.pp in (1, 2, 4) and p.tp in (1, 2, 4, 8) for p in plans)
    assert all(p.num_microbatches * p.dp * p.microbatch_size == 64 for p in plans)
    assert all(len(set(p.layers_per_stage)) == 1 for p in plans)
    assert len(set(plans)) == len(plans)


@pytest.mark.parametrize("name", ["tp", "device_order", "schedule"])
def test_what_is_decided_cannot_be_given(name: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(PlanError, match=f"{name} is decided here"):
        pipette.pipette(QWEN, Cluster("2x8xA100-80"), SMALL, **given)


def test_nothing_divides_and_nothing_fits_are_told_apart() -> None:
    with pytest.raises(PlanError, match="no configuration puts 36 layers"):
        pipette.pipette(QWEN, Cluster("5x8xA100-80"), Workload(7, 2048))
    with pytest.raises(OutOfMemoryError, match="nearest misses"):
        pipette.pipette(load_model("llama-3.1-405b"), Cluster("2x8xA100-40"), SMALL)


def test_recommendations_fit_where_others_overflow() -> None:
    cluster = Cluster("2x8xA100-40")
    found = pipette.pipette(QWEN, cluster, SMALL)
    assert found == pipette.pipette(QWEN, cluster, SMALL)
    assert [each.latency_s for each in found] == sorted(each.latency_s for each in found)
    kept = {replace(each.plan, device_order=()) for each in found}
    rest = [plan for plan in mechanism.configurations(QWEN, cluster, SMALL) if plan not in kept]
    assert all(pipette.ledger_bytes(each.plan, cluster) <= cluster.memory_bytes for each in found)
    assert all(each.needed_bytes <= cluster.memory_bytes for each in found)
    assert sum(pipette.ledger_bytes(plan, cluster) > cluster.memory_bytes for plan in rest) > len(rest) / 2


def test_even_links_leave_nodes_as_they_are() -> None:
    best = pipette.pipette(QWEN, Cluster("2x8xA100-80"), SMALL)[0]
    assert sorted(best.nodes) == [0, 1] and best.latency_s == best.numbered_s


def test_a_placement_puts_whole_nodes_on_stages() -> None:
    found, cluster = island_plan("qwen3-32b", pp=4, tp=4), island_cluster()
    plan = found.plan
    for stage, pipeline in itertools.product(range(4), range(2)):
        for copy, rank in itertools.product(range(2), range(4)):
            device = plan.device_at(pp=stage, dp=pipeline * 2 + copy, tp=rank)
            assert device == found.nodes[pipeline * 4 + stage] * 8 + copy * 4 + rank
    assert sorted(devices_of(plan, cluster, found.nodes)) == list(range(64))


def test_stages_that_reduce_together_are_on_one_island_and_the_step_is_shorter() -> None:
    found, cluster = island_plan("qwen3-32b", pp=4, tp=4), island_cluster()
    islands = [ISLAND_OF_NODE[node] for node in found.nodes]
    assert islands[:4] == islands[4:] and islands[:4] in ([0, 0, 1, 1], [1, 1, 0, 0])
    before_s = simulated_step_s(replace(found.plan, device_order=()), cluster)
    assert simulated_step_s(found.plan, cluster) < 0.95 * before_s


def test_the_first_stages_gradients_alone_leave_others_on_slow_links() -> None:
    cluster = island_cluster()
    first, every = (island_plan("qwen3-32b", 4, 4, reduced) for reduced in ("first", "all"))
    assert simulated_step_s(first.plan, cluster) > 1.02 * simulated_step_s(every.plan, cluster)  # Differs 5


def test_slower_links_are_measured_as_slower() -> None:
    plan = island_plan("llama-3.1-70b", pp=4, tp=8).plan
    rates = attained_rates(plan, island_cluster())
    fast = {rates[a][b] for a, b in _pairs() if ISLAND_OF_NODE[a] == ISLAND_OF_NODE[b]}
    slow = {rates[a][b] for a, b in _pairs() if ISLAND_OF_NODE[a] != ISLAND_OF_NODE[b]}
    assert max(slow) < min(fast) < 25e9 and all(math.isinf(rates[a][a]) for a in range(8))


def test_sizes_of_a_plan_by_hand() -> None:
    plan = island_plan("llama-3.1-70b", pp=4, tp=8).plan
    assert message_bytes(plan) == 2048 * 8192 * 2 / 8  # tokens, width, float16, shared by eight
    whole = load_model("llama-3.1-70b").num_parameters / (4 * 8) * 2
    assert first_gradient_bytes(plan) == pytest.approx(whole, rel=0.05)
    assert order_cost(plan, island_cluster()).num_microbatches == plan.num_microbatches


def test_seconds_of_a_microbatch_are_those_of_the_slowest_stage() -> None:
    plan = island_plan("llama-3.1-70b", pp=4, tp=8).plan
    longer = replace(plan, layers_per_stage=(30, 20, 20, 10))
    ratio = microbatch_s(longer, island_cluster()) / microbatch_s(plan, island_cluster())
    assert 1.35 < ratio < 1.5  # 30 layers against 20 and the head


def test_a_plan_of_half_nodes_is_refused() -> None:
    plan = island_plan("llama-3.1-70b", pp=4, tp=8).plan
    with pytest.raises(PlanError, match="whole nodes"):
        order_cost(replace(plan, pp=16, dp=1, tp=4, layers_per_stage=(5,) * 16), island_cluster())
    with pytest.raises(SpecError, match="multiple of pp"):
        NodeOrderCost(((math.inf, 1.0), (1.0, math.inf)), (1.0,) * 3, 1, 1e6)


def test_islands_are_links_of_the_cluster() -> None:
    cluster = island_cluster()
    assert isinstance(cluster, ClusterSpec) and len(cluster.links) == 2 * 4 * 4 * 8
    assert cluster.bandwidth_bytes_per_s(0, 8) == 2.5e9 and cluster.bandwidth_bytes_per_s(0, 24) == 25e9


def _pairs() -> list[tuple[int, int]]:
    return list(itertools.permutations(range(8), 2))


def test_as_a_planner_it_gives_its_recommendations_in_order() -> None:
    job = (load_model("qwen3-8b"), Cluster("2x8xA100-80"), Workload(32, 2048))
    found = filler("planner", "pipette")(*job, {"recompute": "full"})
    assert found.plans == tuple(each.plan for each in pipette.pipette(*job, recompute="full"))
    assert len(found) > 1 and all(plan.device_order for plan in found)
    assert "wherever its nodes are" in found.notes[0]


def test_where_pipelines_are_is_told_with_what_it_saves() -> None:
    found = filler("planner", "pipette")(load_model("llama-2-70b"), island_cluster(), SMALL, {})
    assert "less than without a placement; its pipelines run, first stage first, on nodes " in found.notes[0]
