"""SkipPipe: the published spans to the digit, by dispatch and by replay; our paths; the card's numbers."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.ir.judge.verify import verify
from meshwright.systems.pipeline.skip_pipe import card as skip_pipe

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
    assert skip_pipe.dispatch(skip_pipe.network(), alone.injections()).span_s == pytest.approx(span_s)


def test_the_factory_gives_the_best_published_plan() -> None:
    program = skip_pipe.skip_pipe()
    verify(program)
    assert len(program.tables.microbatches) == 30
    assert skip_pipe.skip_pipe(skip_pipe.published("full")).num_rows != program.num_rows


def test_the_card_claims_what_ran() -> None:
    card = system("skip_pipe")
    assert card.is_simulated and card.is_executed
    assert {claim.kind for claim in card.claims} == {"identity", "predicted", "measured"}
