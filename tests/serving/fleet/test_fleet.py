"""Loads on simulated replicas: nothing is lost, time is kept, and what a plan changes shows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.serving.simulated_case import load, program, table

from meshwright.serving.fleet import fleet
from meshwright.serving.fleet.fleet import Served, serve
from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.report import LoadReport
from meshwright.serving.loop.request_log import RequestRecord
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import token_bytes
from meshwright.serving.simulated.step_model import EveryStep
from meshwright.specs.error import PlanError, UnknownNameError

ONE = ServingPlan(ReplicaLayout(), max_batch_tokens=128, max_sequences=32)
PLANS = {
    "one": ONE,
    "two": replace(ONE, replicas=2),
    "in turns": replace(ONE, replicas=3, router="round_robin"),
    "apart": replace(ONE, replicas=3, num_prefill=1),
    "stages": replace(ONE, layout=ReplicaLayout(1, 2)),
    "few sequences": replace(ONE, max_sequences=4),
}


def served(plan: ServingPlan, requests: list[Request], most_tokens: int = 2048) -> Served:
    """On H100s, by the table."""
    tp, pp = plan.layout.tp, plan.layout.pp
    return serve(plan, program(tp, pp), table(tp, pp), requests, most_tokens)


def records(found: Served) -> list[RequestRecord]:
    """Of all replicas."""
    return [record for log in found.logs for record in log.records]


class TwoStages:
    """Steps of 4 seconds; the next one may begin after 2."""

    def step(self, batch: BatchShape) -> StepTime:
        """Of any batch."""
        return StepTime(4.0, 2.0)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_request_goes_to_a_lane_that_is_free_when_it_comes(is_alone: bool) -> None:
    """The other lane's step ends later."""
    replica = SimulatedReplica(TwoStages(), 40, 16, ONE.limits(64), num_lanes=2)  # type: ignore[arg-type]
    requests = [Request(name, 8, 1, at_s, num_output_tokens=1) for name, at_s in (("a", 0.0), ("b", 3.0))]
    if is_alone:
        replica.serve(RecordedArrivals(requests))
    else:  # a router looks at it when a request comes
        for request in requests:
            replica.advance(request.arrival_s)
            replica.give(request)
        replica.advance(math.inf)
    assert [(each.begun_s, each.end_s) for each in replica.log.records] == [(0.0, 4.0), (3.0, 7.0)]


@pytest.mark.parametrize("name", PLANS)
def test_all_that_comes_ends_once_with_all_of_its_tokens(name: str) -> None:
    """In == out, and no first token before the prompt could be computed."""
    requests = load()
    found = records(served(PLANS[name], requests))
    assert sorted(each.request.id for each in found) == sorted(each.id for each in requests)
    for each in found:
        assert each.num_tokens == each.request.num_output_tokens and each.reason == "length"
        assert each.request.arrival_s <= each.begun_s < each.first_token_s <= each.end_s
        least_s = (
            program(*_degrees(PLANS[name]))
            .step(BatchShape.of([(0, each.request.num_prompt_tokens)]))
            .latency_s
        )
        assert each.ttft_s >= each.begun_s - each.request.arrival_s + 0.98 * least_s


def _degrees(plan: ServingPlan) -> tuple[int, int]:
    return plan.layout.tp, plan.layout.pp


@pytest.mark.parametrize("name", PLANS)
def test_littles_law_holds(name: str) -> None:
    """Requests in the system, counted at 20,000 moments, are arrivals a second times the mean stay."""
    found = records(served(PLANS[name], load(400, 40.0)))
    end_s = max(each.end_s for each in found)
    moments = [end_s * (i + 0.5) / 20_000 for i in range(20_000)]
    came, left = sorted(each.request.arrival_s for each in found), sorted(each.end_s for each in found)
    inside = i = j = 0
    for moment in moments:
        while i < len(came) and came[i] <= moment:
            i += 1
        while j < len(left) and left[j] <= moment:
            j += 1
        inside += i - j
    stay_s = sum(each.e2e_s for each in found) / len(found)
    assert inside / len(moments) == pytest.approx(len(found) / end_s * stay_s, rel=0.02)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "apart"])
def test_time_between_tokens_is_that_of_outputs(name: str) -> None:
    """Of all tokens behind first ones its mean is the mean time that they took: also of lanes beside each other, and of
    replicas that were idle between."""
    for per_s in (3.0, 60.0):
        found = served(PLANS[name], load(100, per_s))
        behind = sum(each.num_tokens - 1 for each in records(found))
        seconds = sum(each.end_s - each.first_token_s for each in records(found))
        assert LoadReport.of(found.logs).itl_s["mean"] == pytest.approx(seconds / behind, rel=1e-9)


def test_a_replica_that_waits_for_prompts_is_not_between_tokens() -> None:
    """At one request a second a replica that only decodes is idle most of the time: no step is nearly as long."""
    found = served(PLANS["apart"], load(40, 1.0))
    report = LoadReport.of(found.logs)
    assert report.itl_s["p99"] < 2 * report.itl_s["p50"] < 0.1
    assert report.itl_s["mean"] < 2 * report.itl_s["p50"]


def test_faster_devices_and_more_replicas_make_nobody_wait_longer() -> None:
    """At a load that one A100 does not keep up with."""
    requests = load(200, 60.0)

    def mean_s(devices: str, replicas: int) -> float:
        plan = replace(ONE, replicas=replicas)
        return LoadReport.of(
            serve(plan, program(devices=devices), table(devices=devices), requests, 2048).logs
        ).e2e_s["mean"]

    slow, fast, faster = mean_s("1x8xA100", 1), mean_s("1x8xH100", 1), mean_s("1x8xH100", 4)
    assert slow > fast > faster


def test_the_table_serves_as_simulated_steps_do() -> None:
    """Medians and 99th percentiles within 3 %, at a low and at a saturating load."""
    for per_s in (2.0, 200.0):
        requests = load(100, per_s)
        quick = LoadReport.of(served(ONE, requests).logs)
        exact = LoadReport.of(serve(ONE, program(), EveryStep(program()), requests, 2048).logs)
        for one, other in ((quick.ttft_s, exact.ttft_s), (quick.tpot_s, exact.tpot_s)):
            assert one["p50"] == pytest.approx(other["p50"], rel=0.03)
            assert one["p99"] == pytest.approx(other["p99"], rel=0.03)


def test_the_loops_seconds_do_not_count_what_the_table_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is made when it is first asked: before the clock is looked at."""
    steps, order = table(), list[str]()

    class Slow:
        run = staticmethod(steps.run)

        def step(self, batch: BatchShape) -> StepTime:
            order.append("step")
            return steps.step(batch)

    monkeypatch.setattr(fleet.time, "process_time", lambda: float(order.append("clock") or len(order)))
    serve(ONE, program(), Slow(), load(3), 2048)
    assert order[:2] == ["step", "clock"] and order[-1] == "clock"


def test_what_can_never_fit_is_refused_when_it_comes() -> None:
    """The others are served."""
    requests = load(10)
    requests[4] = replace(requests[4], num_prompt_tokens=3000)
    for plan in (ONE, PLANS["apart"]):
        report = LoadReport.of(served(plan, requests).logs)
        assert (report.num_requests, report.num_refused, report.num_finished) == (10, 1, 9)


def test_the_least_loaded_replica_gets_the_next_request() -> None:
    """Of a load that saturates both, each gets about half; in turns exactly half."""
    for router, tolerance in (("least_loaded", 0.2), ("round_robin", 0.0)):
        plan = replace(ONE, replicas=2, router=router)
        first, second = (len(log.records) for log in served(plan, load(100, 200.0)).logs)
        assert first + second == 100 and abs(first - second) <= 100 * tolerance


def test_who_knows_the_prefix_gets_the_request() -> None:
    """Sessions stay where they began, so more of their prompts is found computed than where they are dealt out."""
    requests = load(200, 30.0, num_sessions=20)

    def num_cached(router: str) -> int:
        plan = replace(ONE, replicas=4, router=router)
        return LoadReport.of(served(plan, requests).logs).num_cached_tokens

    assert num_cached("prefix_aware") > 1.2 * num_cached("round_robin") > 0


def test_prompts_and_outputs_are_computed_apart() -> None:
    """No step has both, and nobody's second token comes before keys and values crossed a link of 900 GB/s."""
    found = served(PLANS["apart"], load(200, 100.0))
    prefill, *decode = (log.steps for log in found.logs)
    assert sum(prefill.num_prefill_tokens) == sum(each.num_prompt_tokens for each in load(200, 100.0))
    assert not any(prefill.num_decodes) and not any(any(steps.num_prefill_tokens) for steps in decode)
    each_bytes = token_bytes(program())
    for record in records(found):
        if record.num_tokens > 1:
            wire_s = record.request.num_prompt_tokens * each_bytes / 900e9
            assert record.end_s - record.first_token_s > wire_s


def test_a_plan_that_cannot_be_is_refused() -> None:
    """Nobody would decode; a router that nobody knows."""
    with pytest.raises(PlanError, match="2 replicas, of which 2 prefill"):
        replace(ONE, replicas=2, num_prefill=2)
    with pytest.raises(UnknownNameError, match="least_loaded"):
        replace(ONE, router="least_load")


def test_fetched_weights_and_parts_of_a_step_are_not_planned_together() -> None:
    with pytest.raises(PlanError, match="weights=moon with step=parts"):
        ServingPlan(ReplicaLayout(), weights="moon", step="parts")
