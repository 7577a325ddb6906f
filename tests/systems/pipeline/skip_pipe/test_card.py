"""SkipPipe: the published spans to the digit, by dispatch and by replay; our paths; the card's numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.ir.trace import Trace
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.systems.pipeline.skip_pipe import card as skip_pipe
from meshwright.systems.pipeline.skip_pipe import published as authors
from meshwright.systems.pipeline.skip_pipe.card import (
    PLANS,
    STAGE_NODES,
    STAGE_OF_NODE,
    WAIT,
    network,
    path_rules,
    published,
    realised_program,
)
from meshwright.systems.pipeline.skip_pipe.mechanism import Dispatch, Injection, Network, dispatch

SPANS_S = {
    "full": 79.93971963540922,
    "random": 48.915682705668054,
    "colliding": 35.43481420147051,
    "collision-free": 33.31379002209655,
}


@pytest.mark.parametrize("plan", SPANS_S)
def test_published_plans_take_what_their_authors_say(plan: str) -> None:
    assert skip_pipe.dispatched_s(plan) == SPANS_S[plan]
    assert skip_pipe.replayed_s(plan) == pytest.approx(SPANS_S[plan], rel=1e-9)


@pytest.mark.slow
def test_our_plan_is_at_least_as_fast_as_the_best_published_one() -> None:
    found = skip_pipe.found_plan(0)
    skip_pipe.path_rules().check(found.plan.paths)
    assert found.span_s <= SPANS_S["collision-free"]
    assert skip_pipe.found_s(0) == pytest.approx(found.span_s, rel=1e-9)
    assert skip_pipe.num_faster(0) == 0
    assert skip_pipe.reduction("ours") >= skip_pipe.reduction("collision-free") > 0.58


@pytest.mark.parametrize(("spacing_s", "span_s"), [(1.0, 33.31379002209655), (1.2, 33.05379002209654)])
def test_the_node_in_australia_alone_takes_as_long(spacing_s: float, span_s: float) -> None:
    """Why neither search can do better at its spacing."""
    alone = skip_pipe.PathPlan(((11, 8, 16, 9),) * 3, spacing_s)
    assert skip_pipe.dispatch(authors.network(), alone.injections()).span_s == pytest.approx(span_s)


def test_the_factory_makes_a_program_of_a_published_plan() -> None:
    stages = authors.STAGE_OF_NODE
    program = skip_pipe.skip_pipe(authors.published("collision-free"), authors.network(), stages)
    verify(program)
    assert len(program.tables.microbatches) == 30
    full = skip_pipe.skip_pipe(authors.published("full"), authors.network(), stages)
    assert full.num_rows != program.num_rows


def test_the_factory_takes_the_nodes_that_it_is_given() -> None:
    nodes = Network(np.full((4, 4), 0.5), np.ones(4), 2)
    plan = skip_pipe.PathPlan(((0, 1, 3), (0, 2, 3)), 1.0)
    program = skip_pipe.skip_pipe(plan, nodes, {node: node for node in range(4)})
    assert program.num_lists == 4 and len(program.tables.microbatches) == 4
    with pytest.raises(PlanError, match=r"nodes \[14\]"):
        skip_pipe.skip_pipe(skip_pipe.PathPlan(((0, 14),), 1.0), nodes, authors.STAGE_OF_NODE)


def test_the_card_claims_what_ran() -> None:
    card = system("skip_pipe")
    assert card.is_simulated and card.is_executed
    assert {claim.kind for claim in card.claims} == {"identity", "predicted", "measured"}


def test_every_pair_of_cities_has_a_link() -> None:
    assert len(authors.CITIES) == 12
    for one in authors.CITIES:
        for other in authors.CITIES:
            latency_ms, rate = authors.link(one, other)
            assert latency_ms > 0 and rate > 0
            assert authors.link(other, one) == (latency_ms, rate)


def test_rows_are_those_of_the_source() -> None:
    assert authors.link("Belgium", "Canada") == (41, 0.0198974609375 * 8192)
    assert authors.link("Canada", "Singapore") == (107, 0.01193847 * 8192)
    assert authors.link("London", "Taiwan") == (109.5, 0.0089599609375 * 8192)
    assert authors.link("Iowa", "Iowa") == (1, 2.0 * 8192)


def test_a_message_takes_latency_and_bytes_over_rate() -> None:
    assert authors.message_s("Belgium", "Canada", 0) == pytest.approx(0.041)
    assert authors.message_s("Oregon", "LA", 971 / 8 * 2**20) == pytest.approx(1.0124)


def test_an_unknown_city_is_named() -> None:
    with pytest.raises(UnknownNameError, match="Atlantis"):
        authors.link("Iowa", "Atlantis")


def test_seconds_of_messages_are_the_shipped_ones() -> None:
    seconds = network().message_s
    # Belgium to Canada, Belgium to Belgium, NL to London: schedule.json, "delays"
    assert seconds[0, 1] == 1.9615622573571703
    assert seconds[0, 12] == 0.3666251005828381
    assert seconds[6, 10] == 132.3144123449581
    assert (seconds == seconds.T).all() and not seconds.diagonal().any()


def test_every_node_has_one_stage() -> None:
    assert sorted(node for nodes in STAGE_NODES for node in nodes) == list(range(20))


@pytest.mark.parametrize("name", ["random", "colliding", "collision-free"])
def test_partial_plans_visit_all_nodes_equally_often(name: str) -> None:
    path_rules().check(published(name).paths)


def test_full_pipelines_pass_all_stages() -> None:
    for path in PLANS["full"].paths:
        assert [authors.STAGE_OF_NODE[node] for node in path] == list(range(6))


def test_later_rounds_wait_for_the_first_in_their_place() -> None:
    injections = PLANS["full"].injections()
    assert len(injections) == 27
    openers = Counter(injection.opener for injection in injections)
    assert openers[-1] == 9 and all(openers[3 * place] == 2 for place in range(9))
    for injection in injections:
        if injection.opener >= 0:
            assert injections[injection.opener].nodes == injection.nodes


def test_an_unknown_plan_is_named() -> None:
    with pytest.raises(UnknownNameError, match="best"):
        published("best")


def replayed(program: Program, message_s: np.ndarray) -> Trace:
    costs = skip_pipe.dispatch_costs(Network(message_s, np.ones(len(message_s)), 1))
    return simulate_program(program, costs, costs)


@pytest.fixture(scope="module", params=PLANS)
def found(request: pytest.FixtureRequest) -> Dispatch:
    return dispatch(network(), PLANS[request.param].injections())


def test_the_program_is_legal_and_keeps_the_memory(found: Dispatch) -> None:
    program = realised_program(found, STAGE_OF_NODE)
    assert verify(program).peak_of() == authors.MEMORY
    assert metrics.peak_bytes(replayed(program, network().message_s)) == authors.MEMORY


def test_every_work_begins_when_the_dispatch_began_it(found: Dispatch) -> None:
    program = realised_program(found, STAGE_OF_NODE)
    trace = replayed(program, network().message_s)
    hops = found.num_hops
    begun = {}
    for device in range(program.num_lists):
        for row in program.instructions(device):
            if row.name in ("F", "B") and not (row.name == "B" and row.hop == hops):
                leg = row.hop if row.name == "F" else 2 * hops - row.hop
                begun[row.microbatch, leg] = trace.start_s[0, row.row]
    assert len(begun) == found.start_s.size
    for (microbatch, leg), start_s in begun.items():
        assert start_s == pytest.approx(found.start_s[microbatch, leg], abs=1e-9)


def test_waits_are_gaps_refusals_and_injections() -> None:
    """Two microbatches, memory for one: the second injection is due at 5, and begins at 7.38 behind a backward's gap."""
    injected = (Injection((0, 1), 0.0), Injection((0, 1), 5.0))
    message_s = np.full((2, 2), 0.5)
    found = dispatch(Network(message_s, np.ones(2), 1), injected)
    program = realised_program(found, {0: 0, 1: 1})
    waits = [row for d in (0, 1) for row in program.instructions(d) if row.name == WAIT.name]
    assert [row.work.share for row in waits if row.work and row.device == 0] == pytest.approx(
        [0.09, 0.13, 0.13, 0.09, 0.13]
    )
    assert metrics.span_s(replayed(program, message_s)) == pytest.approx(found.span_s)


def test_another_order_has_another_span() -> None:
    """The dispatch is not baked into the times: slower messages move what depends on them."""
    found = dispatch(network(), PLANS["collision-free"].injections())
    program = realised_program(found, STAGE_OF_NODE)
    slower = replayed(program, network().message_s + 0.1)
    assert metrics.span_s(slower) > found.span_s + 1.0


def test_paths_are_data_of_the_microbatches() -> None:
    program = realised_program(dispatch(network(), PLANS["random"].injections()), STAGE_OF_NODE)
    assert len(program.tables.paths) == 14 + 1
    assert {len(path) for path in program.tables.paths} == {5}
    assert program.path_of(0)[0] == (0, 0) and program.path_of(0)[-1] == (6, 0)
    assert from_text(to_text(program)).digest() == program.digest()


def test_without_waits_only_the_order_is_left() -> None:
    found = dispatch(network(), PLANS["collision-free"].injections())
    program = realised_program(found, STAGE_OF_NODE, tokens=7, has_waits=False)
    verify(program, host="in_order")
    assert WAIT.name not in {effect.name for effect in program.tables.effects}
    assert {microbatch.tokens for microbatch in program.tables.microbatches} == {7}
