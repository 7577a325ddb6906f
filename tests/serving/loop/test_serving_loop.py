"""The loop: nobody is lost, the books are right at every step, and time may leap without a decision changing."""

from __future__ import annotations

import math

import pytest
from tests.covering import covering, product
from tests.serving.case import LIMITS, Served, drawn_load, served

from meshwright.serving.loop.arrivals import ClientArrivals
from meshwright.serving.loop.report import LatencyObjective, LoadReport, figures
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.request.arrival import ClosedLoop
from meshwright.serving.request.request import Request


def check_all_served(case: Served, requests: list[Request]) -> None:
    """in == out, and nothing is held any more."""
    scheduler = case.loop.scheduler
    scheduler.pool.check()
    assert scheduler.pool.num_held == 0 and not len(scheduler.waiting) and not list(scheduler.sequences())
    assert scheduler.host_pool is None or scheduler.host_pool.num_held == 0
    assert len(case.log.records) == sum(request.num_outputs for request in requests)
    for record in case.log.records:
        assert record.reason == "length" and record.num_tokens == record.request.num_output_tokens
        assert record.request.arrival_s <= record.begun_s < record.first_token_s <= record.end_s


ROWS = list(
    product(
        {
            "is_chunked": (True, False),
            "preemption": ("recompute", "swap"),
            "is_fair": (False, True),
            "num_blocks": (16, 40),
            "prefixes": (0, 3),
            "num_outputs": (1, 3),
            "num_lanes": (1, 2),
            "depth": (1, 2),
        }
    )
)
CASES = [ROWS[number] for number in covering(ROWS)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_everybody_is_served_and_leaps_change_no_decision(case: dict[str, object]) -> None:
    choices = dict(case)
    policy = ContinuousBatching(
        is_chunked=choices.pop("is_chunked"),
        preemption=choices.pop("preemption"),
        is_fair=choices.pop("is_fair"),
    )
    load = {name: choices.pop(name) for name in ("prefixes", "num_outputs")}
    host = 20 if policy.preemption == "swap" else 0
    longest = 16 if not policy.is_chunked else 30
    for seed in range(4):
        both = []
        for repeats in (True, False):
            requests = drawn_load(seed, users=3, longest=longest, **load)
            case_served = served(
                requests, policy, num_host_blocks=host, limits=LIMITS, repeats=repeats, **choices
            )
            check_all_served(case_served, requests)
            both.append(case_served)
        assert both[0].decisions.lines == both[1].decisions.lines
        for first, second in zip(both[0].log.records, both[1].log.records, strict=True):
            assert (first.first_token_s, first.end_s) == pytest.approx(
                (second.first_token_s, second.end_s), rel=1e-12
            )


def test_littles_law() -> None:
    """Requests in the system on average = arrivals a second x seconds in it; counted step by step, and by records."""
    requests = drawn_load(7, num=400)
    case = served(requests)
    records = case.log.records
    ends = sorted([(r.request.arrival_s, 1) for r in records] + [(r.end_s, -1) for r in records])
    area, inside, last_s = 0.0, 0, ends[0][0]
    for at_s, change in ends:
        area += inside * (at_s - last_s)
        inside, last_s = inside + change, at_s
    duration_s = ends[-1][0] - ends[0][0]
    mean_s = sum(r.e2e_s for r in records) / len(records)
    assert inside == 0
    assert area / duration_s == pytest.approx(len(records) / duration_s * mean_s, rel=0.02)


def test_what_can_never_fit_is_refused_and_counted() -> None:
    requests = [
        Request("long", 60, 30, num_output_tokens=3),
        Request("wide", 30, 20),
        Request("good", 3, 2, num_output_tokens=2),
    ]
    case = served(requests, num_blocks=10)
    assert [request.id for request in case.log.never] == ["long", "wide"]
    report = LoadReport.of([case.log])
    assert (report.num_requests, report.num_refused, report.num_finished) == (3, 2, 1)


def test_closed_loop_keeps_so_many_under_way() -> None:
    requests = drawn_load(3, num=30)
    case = served([])
    case.loop.arrivals = ClientArrivals(ClosedLoop(requests, 4))
    most = 0
    case.loop.take_arrivals()
    while case.loop.give_out() or case.loop.scheduler.num_running:
        most = max(most, len({each.request.id for each in case.loop.scheduler.sequences()}))
        case.loop.collect()
        case.loop.take_arrivals()
    check_all_served(case, requests)
    assert most == 4


def test_figures_are_the_least_value_that_so_many_reach() -> None:
    found = figures([3.0, 1.0, 2.0, 4.0])
    assert (found["mean"], found["p50"], found["p90"], found["p99"]) == (2.5, 2.0, 4.0, 4.0)
    assert figures([1.0, 10.0], [99, 1])["p90"] == 1.0 and figures([1.0, 10.0], [98, 2])["p99"] == 10.0
    assert math.isnan(figures([])["p50"])


def test_goodput_counts_who_met_every_objective() -> None:
    case = served(drawn_load(5))
    everyone = LoadReport.of([case.log])
    middle = LoadReport.of([case.log], LatencyObjective(ttft_s=everyone.ttft_s["p50"]))
    assert everyone.goodput_per_s * everyone.duration_s == pytest.approx(40)
    assert middle.goodput_per_s * middle.duration_s == pytest.approx(20, abs=1)
    assert LoadReport.of([case.log], LatencyObjective(e2e_s=0.0)).goodput_per_s == 0.0
