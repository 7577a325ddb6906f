"""A step in segments takes what its stages' composed prices say where nothing overlaps, and says which of both it is."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import api
from meshwright.ir.judge import metrics
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs import Cluster, Plan, Workload, load_model
from meshwright.specs.error import PlanError, SpecError
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES

MODEL = load_model("llama-3.1-8b")
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def both(cluster: str, **choices: Any) -> tuple[Predicted, Predicted]:
    where = Cluster(cluster)
    plan = Plan.of(MODEL, where, Workload(8, 8192), **MIXED, **choices)
    return predict(plan, where), predict(plan, where, in_segments=True)


@pytest.mark.parametrize("choices", [{}, {"recompute": "full"}, {"sequence_parallel": True}], ids=str)
def test_segments_take_what_the_composed_prices_say_where_nothing_overlaps(choices: dict[str, Any]) -> None:
    composed, segments = both("8xH100", tp=8, dp=1, **choices)
    # the loss's sum and its target's logit are one exchange of the program, and two in the composed price
    loss = next(
        each
        for work in composed.program.tables.works
        for each in work.inner
        if each.bytes == loss_bytes(composed)
    )
    seconds = composed.pricing.costs.exchange_cost(loss.exchange, loss.bytes, tuple(range(8))).seconds
    passes = 2 if composed.plan.recompute == "full" else 1
    most = passes * composed.plan.num_microbatches * seconds
    assert 0 <= composed.step.value - segments.step.value <= 1.01 * most < 0.001 * composed.step.value
    assert segments.num_rows > 10 * composed.num_rows


@pytest.mark.parametrize("choices", [{"tp": 8}, {"tp": 4, "pp": 2, "recompute": "full"}], ids=str)
def test_segments_take_as_long_where_stages_are_pieces_and_gradients_travel(choices: dict[str, Any]) -> None:
    composed, segments = both("16xH100", dp=2, sequence_parallel=True, overlap=("reduce",), **choices)
    assert segments.step.value == pytest.approx(composed.step.value, rel=0.0005)


def loss_bytes(found: Predicted) -> float:
    return float(found.plan.tokens_per_microbatch * LOSS_ELEMENT_BYTES)


def test_exchanges_inside_stages_are_parts_of_a_step_in_segments() -> None:
    composed, segments = both("16xH100", tp=4, pp=2, dp=2, sequence_parallel=True)
    inside = ("ALL_GATHER", "REDUCE_SCATTER")
    assert all(segments.parts[name] > 0 for name in inside) and not set(inside) & set(composed.parts)
    # what computes wait for of these is told as in composed prices, so that parts, and intervals, are of the same kind
    for name in ("exchanges inside, host", "waiting"):
        assert segments.parts[name] == pytest.approx(composed.parts[name], rel=0.01)
    # one definition: compute streams idle while rows are sent, and are busy with what is priced within them
    for each in (composed, segments):
        assert each.bubble == pytest.approx(metrics.bubble(each.trace()), rel=1e-12)
    assert segments.bubble > 1.2 * composed.bubble


def test_what_of_an_exchange_passes_beside_computes_is_said_by_name() -> None:
    _, segments = both("8xH100", tp=8, dp=1, sequence_parallel=True)
    scattered, gathered = segments.exchanges["REDUCE_SCATTER"], segments.exchanges["ALL_GATHER"]
    assert scattered.hidden_s == pytest.approx(0.0, abs=1e-9)
    # of three gathers in F and B the one that a backward fetches again runs beside products, but the first of all
    assert gathered.hidden_s == pytest.approx(gathered.seconds / 3, rel=0.02)
    assert gathered.seconds == pytest.approx(segments.parts["ALL_GATHER"])


def test_seventy_billion_in_segments_are_a_hundred_thousand_rows_that_verify() -> None:
    where = Cluster("64xH100")
    plan = Plan.of(
        load_model("llama-3.1-70b"), where, Workload(64, 8192), tp=8, pp=8, sequence_parallel=True, **MIXED
    )
    found = predict(plan, where, in_segments=True)
    assert 90_000 < found.num_rows < 120_000
    assert found.verified.peak_of("device") > 0
    assert found.step.value == pytest.approx(predict(plan, where).step.value, rel=0.01)


def test_simulate_says_what_the_composed_prices_would_have_said() -> None:
    where = Cluster("8xH100")
    plan = Plan.of(MODEL, where, Workload(8, 8192), tp=8, dp=1, **MIXED)
    made = api.subject(plan, cluster=where, segments=True)
    assert made.assumptions[-1].startswith("in segments; composed of its stages' prices the step takes")
    assert api.subject(plan, cluster=where).assumptions == made.assumptions  # rows, where they say all of it
    composed = api.subject(plan, cluster=where, segments=False)
    assert composed.assumptions[-1] == "composed of its stages' prices"
    assert composed.program.num_rows < made.program.num_rows
    assert api.simulate(made).metadata["step"]["value"] > 0


@pytest.mark.parametrize(
    "choices", [{"tp": 1, "dp": 8}, {"tp": 4, "cp": 2, "dp": 1}, {"tp": 8, "dp": 1, "overlap": ("tp",)}]
)
def test_what_is_not_in_segments_is_refused_by_name(choices: dict[str, Any]) -> None:
    where = Cluster("8xH100")
    plan = Plan.of(MODEL, where, Workload(8, 8192), **MIXED, **choices)
    with pytest.raises(PlanError, match="in segments"):
        api.subject(plan, cluster=where, segments=True)


def test_only_plans_are_cut_into_segments() -> None:
    with pytest.raises(SpecError):
        api.subject("1f1b", segments=True)
