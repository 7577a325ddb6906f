"""Which steps are priced of composed stages, which in segments, and where the conditions of a composed price fail."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from meshwright.prediction.composition import is_in_segments, not_composable, not_in_rows, sends_inside
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, Plan, Workload, load_model

MODEL = load_model("llama-3.2-1b")
WHERE = Cluster("8xH100")
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def planned(**choices: Any) -> Plan:
    return Plan.of(choices.pop("model", MODEL), WHERE, Workload(16, 1024), **{**MIXED, **choices})


LADDER = replace(MODEL, has_ladder_residual=True)
EXPERTS = load_model("mixtral-8x7b")
ENCODER = MODEL.changed(num_encoder_layers=8)
# choices, what rows do not say, conditions that fail
CASES: list[tuple[dict[str, Any], int, str]] = [
    ({"tp": 8}, 0, ""),
    ({"tp": 4, "pp": 2, "sequence_parallel": True}, 0, ""),
    ({"tp": 4, "pp": 2}, 0, "c"),
    ({"tp": 8, "model": LADDER}, 0, "a"),
    ({"tp": 8, "model": ENCODER}, 0, ""),
    ({"tp": 8, "overlap": ("tp",)}, 1, "b"),
    ({"tp": 4, "cp": 2}, 1, "b"),
    ({"tp": 4, "cp": 2, "context": "all_gather"}, 1, ""),
    ({"tp": 4, "cp": 2, "context": "ulysses"}, 0, ""),
    ({"ep": 8, "dp": 8, "model": EXPERTS}, 1, "d"),
    ({"tp": 8, "microbatch_size": 2, "token_parts": 2}, 0, "a"),
    ({"tp": 4, "dp": 2, "sharding": "zero2"}, 0, ""),
    ({"tp": 4, "dp": 2, "sharding": "zero2", "microbatch_size": 8}, 0, ""),
    ({"tp": 8, "recompute": "full"}, 0, ""),
    ({"tp": 8, "recompute": "selective"}, 1, ""),
    ({"tp": 8, "model": load_model("gemma-2-9b")}, 1, ""),  # whose blocks the executor does not have
    ({"tp": 8, "model": load_model("gemma-2-9b")}, 1, ""),
]


@pytest.mark.parametrize(("choices", "num_missing", "letters"), CASES, ids=lambda each: str(each)[:60])
def test_a_composed_price_names_the_conditions_that_fail(
    choices: dict[str, Any], num_missing: int, letters: str
) -> None:
    plan = planned(**choices)
    assert len(not_in_rows(plan)) == num_missing
    assert is_in_segments(plan) == (num_missing == 0)
    assert [each[:3] for each in not_composable(plan, WHERE)] == [f"({letter})" for letter in letters]


def test_where_nothing_is_sent_inside_a_layer_nothing_is_composed() -> None:
    plan = planned(dp=4, pp=2)
    assert not sends_inside(plan) and not is_in_segments(plan) and not_composable(plan, WHERE) == ()
    found = predict(plan, WHERE)
    assert found.level == "stages" and found.refined() is found


def test_a_refined_prediction_keeps_its_composed_number() -> None:
    composed = predict(planned(tp=4, pp=2), WHERE)
    full = composed.refined()
    assert (composed.level, full.level) == ("composed", "segments") and full.refined() is full
    assert isnan(composed.composed_s) and full.composed_s == composed.step.value
    # what fails of (c), the gather of what came, is hidden: no more, and hardly less
    assert 0.99 * composed.step.value < full.step.value < composed.step.value
    assert full.not_composable == composed.not_composable != ()


@pytest.mark.parametrize("choices", [{}, {"sequence_parallel": True}, {"recompute": "full"}], ids=str)
def test_an_encoder_decoder_composed_is_the_sum_of_its_rows(choices: dict[str, Any]) -> None:
    """But for the loss's two exchanges, which are one row; what the encoder has made enters beside attention in both."""
    composed = predict(planned(tp=8, model=ENCODER, **choices), WHERE)
    assert composed.refined().step.value == pytest.approx(composed.step.value, rel=0.002)


def test_a_ladder_residual_has_no_composed_price() -> None:
    found = predict(planned(tp=8, model=LADDER), WHERE)
    assert found.level == "segments" and found.refined() is found and isnan(found.composed_s)


@pytest.mark.parametrize("choices", [{"tp": 4, "cp": 2}, {"tp": 8, "overlap": ("tp",)}], ids=str)
def test_what_rows_do_not_say_stays_composed_and_is_marked(choices: dict[str, Any]) -> None:
    found = predict(planned(**choices), WHERE)
    assert found.refined() is found and found.level == "composed" and found.not_composable
