"""The search finds what trying everything finds, and none of the errors of the published code."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.serving.simulated_case import SMALL, load

from meshwright import catalog
from meshwright.planner.serving.serving_search import ServingSearch
from meshwright.serving.fleet.fleet import Served, serve
from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.report import LatencyObjective, LoadReport
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.planning.apex.mechanism import bound_s, planned, soonest, space

LIMITS: dict[str, Any] = {"max_batch_tokens": 128, "max_sequences": 16}
FIRST = ServingPlan(ReplicaLayout(2, attention_dp=2), 2, **LIMITS)


def job(cluster: str, requests: list[Request], model: ModelSpec = SMALL, **more: Any) -> ServingSearch:
    """A search that was asked for nothing yet."""
    return ServingSearch(model, Cluster(cluster), requests, LatencyObjective(), {**LIMITS, **more})


def drawn(seed: int) -> list[Request]:
    """Requests of random lengths, at random times or all at once."""
    draw = random.Random(seed)
    found = load(draw.randint(5, 60), draw.choice((5.0, 50.0, 500.0)), seed)
    at_once = draw.random() < 0.5
    longer = draw.choice((1, 4))  # outputs
    return [
        replace(
            each, arrival_s=0.0 if at_once else each.arrival_s, max_output_tokens=longer * each.max_output_tokens,
            num_output_tokens=longer * (each.num_output_tokens or 1),
        )
        for each in found
    ]  # fmt: skip


JOBS = [("2xH100", 1), ("4xH100", 2), ("4xA100-80", 3), ("6xH100", 4), ("8xH100", 5), ("8xH100", 6)]
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in JOBS[1:]]


@pytest.mark.parametrize(("devices", "seed"), [JOBS[0], *SLOW])
def test_what_is_left_out_is_not_the_best(devices: str, seed: int) -> None:
    """Of every plan simulated the one of least time is what the search takes; no bound is above the time itself."""
    search = job(devices, drawn(seed))
    every = soonest(search, is_exhaustive=True)
    best = soonest(replace(search, ranked=[]))[0]  # with the same tables
    assert best.report.duration_s == every[0].report.duration_s
    for each in every:
        assert bound_s(search, each.plan) <= each.report.duration_s, each.plan.name


@pytest.mark.slow
def test_a_load_that_comes_at_once_is_not_tried_on_every_plan() -> None:
    """Stages one behind the other are bound by what they take for a token."""
    requests = [replace(each, arrival_s=0.0) for each in load(60)]
    search = job("4xH100", requests)
    assert len(soonest(search)) < len(list(space(search)))


def test_the_space_has_every_way_to_use_all_devices() -> None:
    """r p t = 4 in six ways, with as many groups as divisors of t."""
    found = list(space(job("4xH100", load(3))))
    assert {each.num_devices for each in found} == {4} and len(found) == len(set(found))
    degrees = {(each.replicas, each.layout.pp, each.layout.tp, each.layout.attention_dp) for each in found}
    assert degrees == {
        (4, 1, 1, 1), (2, 2, 1, 1), (1, 4, 1, 1), (2, 1, 2, 1), (2, 1, 2, 2), (1, 2, 2, 1), (1, 2, 2, 2),
        (1, 1, 4, 1), (1, 1, 4, 2), (1, 1, 4, 4),
    }  # fmt: skip
    fixed = list(space(job("4xH100", load(3), tp=2, attention_dp=2, router="round_robin")))
    assert {(each.replicas, each.layout.pp) for each in fixed} == {(2, 1), (1, 2)}
    assert {each.router for each in fixed} == {"round_robin"}
    assert [each.num_devices for each in space(job("4xH100", load(3), replicas=1, pp=1, tp=2))] == [2, 2]


def test_nothing_is_left_out_where_no_bound_is_known() -> None:
    """With a decoder a step gives several tokens, so a token has no least time; clients come when others are served; batches
    that are simulated one by one have no table."""
    requests = load(5)
    assert bound_s(job("4xH100", requests), FIRST) > 0
    assert bound_s(job("4xH100", requests), replace(FIRST, decoder="ngram")) == 0
    assert bound_s(replace(job("4xH100", requests), num_clients=2), FIRST) == 0
    assert bound_s(replace(job("4xH100", requests), has_table=False), FIRST) == 0


@pytest.mark.slow
def test_it_fills_the_slot_and_its_plans_serve_the_load() -> None:
    """Four at most, the soonest first."""
    assert catalog.filler("serving_planner", "apex") is planned
    search = job("4xH100", load(20))
    found = replace(search, planner=planned).run()
    assert 0 < len(found) <= 4
    assert all(each.report.num_finished == 20 for each in found)


def served(plan: ServingPlan, requests: list[Request]) -> Served:
    """On four H100s, by the table."""
    program, steps = job("4xH100", requests).steps_of(plan)
    return serve(plan, program, steps, requests, 2048)


@pytest.mark.parametrize(
    "plan",
    [FIRST, *(pytest.param(replace(FIRST, layout=each), marks=pytest.mark.slow)
              for each in (ReplicaLayout(1, 2), ReplicaLayout(2), ReplicaLayout(1)))],
    ids=lambda plan: plan.name,
)  # fmt: skip
def test_no_request_is_lost_and_littles_law_holds(plan: ServingPlan) -> None:
    """In == out, each once, whatever replica, stage or group had it; requests inside, counted at moments, are rate times
    their stay."""
    requests = load(100, 60.0)
    records = [each for log in served(plan, requests).logs for each in log.records]
    assert sorted(each.request.id for each in records) == sorted(each.id for each in requests)
    end_s = max(each.end_s for each in records)
    moments = [end_s * (i + 0.5) / 2000 for i in range(2000)]
    inside = sum(each.request.arrival_s <= at < each.end_s for at in moments for each in records) / 2000
    stay_s = sum(each.e2e_s for each in records) / len(records)
    assert inside == pytest.approx(len(records) / end_s * stay_s, rel=0.02)


def test_the_first_token_waits_for_its_turn() -> None:
    """A hundred at once on places for sixteen: the last one's first token comes behind most of the load."""
    requests = [replace(each, arrival_s=0.0) for each in load(100)]
    report = LoadReport.of(served(replace(FIRST, replicas=1), requests).logs)
    assert report.ttft_s["p99"] > 0.5 * report.duration_s
    assert report.ttft_s["mean"] >= report.queue_s["mean"] > 0


def test_a_preempted_request_is_computed_again() -> None:
    """With blocks for a few of them prompts are computed more than once, and all takes longer."""
    requests = [Request(str(i), 200, 60, 0.0, num_output_tokens=60) for i in range(12)]
    plan = replace(FIRST, replicas=1)
    _, steps = job("4xH100", requests).steps_of(plan)
    found = []
    for num_blocks in (1000, 60):
        replica = SimulatedReplica(steps, num_blocks, 16, plan.limits(2048))
        replica.serve(RecordedArrivals(requests))
        found.append((LoadReport.of([replica.log]), sum(replica.log.steps.num_prefill_tokens)))
    (roomy, once), (tight, more) = found
    assert roomy.num_preemptions == 0 < tight.num_preemptions
    assert tight.num_finished == 12 and once == 12 * 200 < more
    assert tight.duration_s > roomy.duration_s


@pytest.mark.slow
def test_plans_that_do_not_fit_are_told_and_passed_over() -> None:
    """A 70B model on one or two of four devices does not fit; on four it does. Where it fits nowhere that is said."""
    model, requests = load_model("llama-3.1-70b"), load(3)
    search = job("4xH100", requests, model, pp=1)
    found = soonest(search, is_exhaustive=True)
    assert {each.plan.layout.tp for each in found} == {4, 2} and "tp1" in search.rejected
    with pytest.raises(OutOfMemoryError, match="weights"):
        soonest(job("1xH100", requests, model))
    with pytest.raises(PlanError, match="replicas x pp x tp"):
        soonest(job("4xH100", requests, tp=3))


@pytest.mark.slow
def test_faster_devices_end_sooner() -> None:
    """An A100, an H100, and an H200, whose memory alone is faster."""
    requests = [replace(each, arrival_s=0.0) for each in load(40)]
    seconds = [
        soonest(job(name, requests))[0].report.duration_s for name in ("2xA100-80", "2xH100", "2xH200")
    ]
    assert seconds[0] > seconds[1] >= seconds[2]
