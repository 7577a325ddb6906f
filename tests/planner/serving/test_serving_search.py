"""The search finds what serves a load, refuses what cannot, and does not lose the best to its shortcuts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.serving.simulated_case import SMALL, load

from meshwright.planner.serving import serving_search
from meshwright.planner.serving.served_plan import ServedPlan, by_front
from meshwright.planner.serving.serving_search import ServingPlans, ServingSearch, busiest, finalists
from meshwright.planner.serving.serving_space import layouts
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.report import LatencyObjective, LoadReport
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, PlanError

OBJECTIVE = LatencyObjective(ttft_s=0.2, tpot_s=0.02)
LIMITS: dict[str, Any] = {"max_batch_tokens": 128, "max_sequences": 32}


def searched(fix: dict[str, Any], cluster: str = "2xH100", num: int = 60) -> ServingPlans:
    """Of the small model, under a short load."""
    return ServingSearch(SMALL, Cluster(cluster), load(num), OBJECTIVE, {**LIMITS, **fix}).run()


def test_what_is_fixed_is_simulated_and_nothing_else() -> None:
    """One plan, with the figures of the whole load."""
    (found,) = searched({"tp": 2, "replicas": 1})
    assert found.plan == ServingPlan(ReplicaLayout(2), **LIMITS)
    assert found.report.num_requests == found.report.num_finished == 60
    assert found.num_blocks > 0 and found.simulate_s > 0


def test_every_way_to_use_the_devices_is_tried() -> None:
    """On two devices: one, one twice, two by matrices, two by stages; and two replicas, where they are good, with prompts
    apart."""
    found = searched({})
    assert found.num_ranked in (4, 5)
    names = {each.plan.name for each in found}
    assert names <= {"tp1", "2 x tp1", "tp2", "pp2", "2 x tp1 (1 prefill)"}
    assert len(names) == len(found)
    goodput = [each.report.goodput_per_s for each in found]
    assert max(goodput) == goodput[0]
    assert set(found.table_errors) == {each.plan.layout.name for each in found}


def test_attention_is_by_data_where_it_is_fixed_or_a_latent_is_kept_on_every_device() -> None:
    """Of DeepSeek-V3 both are tried; of a model with heads of keys what is fixed."""
    cluster, fix = Cluster("2x8xH200"), {"tp": 8, "pp": 2, "ep": 8}
    found = layouts(load_model("deepseek-v3"), cluster, fix)
    assert {each.attention_dp for each in found} == {1, 8}
    assert {each.attention_dp for each in layouts(SMALL, cluster, {"tp": 8, "pp": 1})} == {1}
    (plan,) = searched({"tp": 2, "replicas": 1, "attention_dp": 2})
    assert plan.plan.layout == ReplicaLayout(2, attention_dp=2) and plan.report.num_finished == 60


def test_plans_are_ranked_by_the_requests_that_come_fastest() -> None:
    """Three in a row within half a second; all where there are fewer; the first where all come at once."""
    requests = [
        replace(each, arrival_s=at) for each, at in zip(load(6), (0.0, 1, 3, 3.2, 3.5, 9), strict=True)
    ]
    assert busiest(requests, 3) == requests[2:5]
    assert busiest(requests, 6) == busiest(requests, 7) == requests
    assert busiest([replace(each, arrival_s=0.0) for each in requests], 2)[0].id == requests[0].id


@pytest.mark.slow
def test_the_best_of_the_busiest_time_is_the_best_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranked by half of the load or by all of it."""
    whole = searched({"max_sequences": 8})
    monkeypatch.setattr(serving_search, "NUM_SAMPLED", 30)
    assert searched({"max_sequences": 8})[0].plan == whole[0].plan


def test_another_planner_names_the_plans_and_may_ask_what_they_do() -> None:
    """Its plans serve the whole load; those that it has ranked are told. One that finds none is refused."""

    def two_alone(search: ServingSearch) -> list[ServingPlan]:
        ranked = search.rank([ServingPlan(ReplicaLayout(), number, **LIMITS) for number in (1, 2)])
        return [max(ranked, key=lambda each: each.report.goodput_per_s).plan]

    found = ServingSearch(SMALL, Cluster("2xH100"), load(30), OBJECTIVE, planner=two_alone).run()
    assert len(found) == 1 and found.num_ranked == 2
    assert found[0].report.num_finished == 30
    with pytest.raises(PlanError, match="no plan"):
        ServingSearch(SMALL, Cluster("2xH100"), load(3), OBJECTIVE, planner=lambda _: []).run()


def test_clients_are_served_by_every_plan_but_those_with_prompts_apart() -> None:
    """Sixteen at a time: nobody waits for a place."""
    found = ServingSearch(SMALL, Cluster("2xH100"), load(60), OBJECTIVE, LIMITS, num_clients=16).run()
    assert all(each.plan.num_prefill == 0 for each in found.ranked)
    for each in found:
        assert each.report.num_finished == 60
        inside = each.report.e2e_s["mean"] * 60 / each.report.duration_s
        assert 10 < inside <= 16
    with pytest.raises(PlanError, match="num_prefill with clients"):
        ServingSearch(SMALL, Cluster("2xH100"), load(3), OBJECTIVE, {"num_prefill": 1}, num_clients=2).run()


def test_simulated_steps_say_what_the_table_says() -> None:
    """Without a table no error is told."""
    fix = {**LIMITS, "tp": 2, "replicas": 1}
    (quick,) = ServingSearch(SMALL, Cluster("2xH100"), load(20), OBJECTIVE, fix).run()
    exact = ServingSearch(SMALL, Cluster("2xH100"), load(20), OBJECTIVE, fix, has_table=False).run()
    assert not exact.table_errors
    assert exact[0].report.e2e_s["p50"] == pytest.approx(quick.report.e2e_s["p50"], rel=0.03)


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        ({"batch": 3}, "has no batch"),
        ({"tp": "8"}, "tp is '8'"),
        ({"tp": 2, "replicas": 2}, "fits on 2 devices"),
        ({"tp": 3}, "tp"),
        ({"replicas": 0}, "replicas is 0"),
        ({"tp": 2, "replicas": 1, "sums": "star"}, "sums=star on"),
    ],
)
def test_what_cannot_be_fixed_is_refused(fix: dict[str, Any], said: str) -> None:
    """By its name."""
    with pytest.raises(PlanError, match=said):
        searched(fix)


def test_a_model_that_fits_nowhere_is_refused_with_what_it_needs() -> None:
    """A 70B model on one device; on four it is told which layouts do not fit."""
    model = load_model("llama-3.1-70b")
    with pytest.raises(OutOfMemoryError, match="143 GB"):
        ServingSearch(model, Cluster("1xH100"), load(5), OBJECTIVE, LIMITS).run()
    found = ServingSearch(
        model, Cluster("4xH100"), load(5), OBJECTIVE, {**LIMITS, "pp": 1, "replicas": 1}
    ).run()
    assert set(found.rejected) == {"tp1"}


def test_a_layout_that_no_program_is_made_of_is_left_out_with_the_reason() -> None:
    """Gemma's blocks exchange nothing in segments yet: one device a replica."""
    model, load_of_5 = load_model("gemma-3-4b"), load(5)
    found = ServingSearch(
        model, Cluster("2xH100"), load_of_5, OBJECTIVE, {**LIMITS, "pp": 1, "replicas": 1}
    ).run()
    assert {each.plan.layout.name for each in found} == {"tp1"}
    assert "gemma3" in found.rejected["tp2"]
    with pytest.raises(PlanError, match="gemma3"):
        ServingSearch(
            model, Cluster("2xH100"), load_of_5, OBJECTIVE, {**LIMITS, "tp": 2, "replicas": 1}
        ).run()


def served(goodput: float, replicas: int, tpot_s: float, price: float | None = None) -> ServedPlan:
    """A plan with these figures."""
    figures = dict.fromkeys(("mean", "p50", "p90", "p99"), tpot_s)
    report = LoadReport(9, 0, 9, 10.0, 500.0, 0.0, figures, figures, figures, figures, figures, goodput, 0, 0)
    device = replace(Cluster("1xH100").devices[0], price_per_hour_usd=price, power_w=700.0)
    return ServedPlan(ServingPlan(ReplicaLayout(), replicas), report, 1, device, 0.1)


def test_plans_that_none_beats_stand_first() -> None:
    """More goodput, fewer devices and less time per token are better; what does less than half is left out."""
    best, few, worse, poor = served(10, 4, 0.02), served(9, 2, 0.03), served(9, 4, 0.03), served(4, 1, 0.01)
    assert by_front([worse, few, poor, best]) == [best, few, worse]


def test_what_is_enough_on_the_fewest_devices_is_a_finalist_and_no_plan_is_one_twice() -> None:
    """Four are quicker than the one on one device, which joins them; a variant of what is there does not."""
    ranked = [served(0.9 + number / 100, number, 0.1 / number) for number in range(1, 6)]
    assert [each.replicas for each in finalists(ranked)] == [5, 4, 3, 2, 1]
    more = replace(served(0.921, 2, 0.05), plan=replace(ranked[1].plan, max_sequences=64))
    assert [each.replicas for each in finalists([*ranked[1:], more])] == [5, 4, 3, 2]


def test_dollars_and_energy_are_of_all_devices_and_a_million_output_tokens() -> None:
    """Two devices at 1.8 USD an hour and 700 W each, for 500 tokens a second: 2,000 s for a million."""
    found = served(1.0, 2, 0.02, price=1.8)
    assert found.usd_per_million_tokens == pytest.approx(2 * 1.8 / 3600 * 2000)
    assert found.kwh_per_million_tokens == pytest.approx(2 * 0.7 * 2000 / 3600)
    assert served(1.0, 2, 0.02).usd_per_million_tokens is None
