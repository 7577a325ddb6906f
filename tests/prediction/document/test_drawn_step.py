"""Steps of documents of different lengths: one length is today's step, two are what a hand adds up, ranks wait."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.pricing import Pricing
from meshwright.planner import Predicted, predict
from meshwright.prediction.document.document_prices import priced_lengths
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, PlanError, Workload
from meshwright.specs.sequence.drawn_rows import drawn_rows

LENGTH, BATCH = 64, 16
TWO = ((LENGTH, 0.25), (16, 0.75))
MODEL = ModelSpec.gpt(2, 64, 4, vocabulary_size=128, max_sequence_length=LENGTH, name="small", source="tests")
PER_FLOP = 1e-9
NUM_DRAWN = 16


class AttentionAlone:
    """Attention's operations take a nanosecond each, all else nothing."""

    def __init__(self) -> None:
        free = FixedCosts({})
        self.exchange_cost, self.flows = free.exchange_cost, free.flows

    def cost(self, work: Any, device: Any = None) -> Cost:
        return Cost(sum(one.total_flops for one in work.operators if one.kind == "attention") * PER_FLOP)


def predicted(where: ClusterSpec, lengths: Any = (), batch: int = BATCH, **choices: Any) -> Predicted:
    plan = Plan.of(MODEL, where, Workload(batch, LENGTH, lengths), microbatch_size=1, **choices)
    costs: Any = AttentionAlone()
    return predict(plan, where, pricing=Pricing(costs, ()))


def _pairs(num_replicas: int) -> np.ndarray:
    """Of every drawn batch, replica and microbatch the pairs of a query and a key within documents."""
    drawn = drawn_rows(TWO, LENGTH, NUM_DRAWN * BATCH)
    of_row = np.bincount(drawn.rows, weights=drawn.lengths * (drawn.lengths + 1) / 2)
    return of_row.reshape(NUM_DRAWN, num_replicas, -1)


@pytest.mark.parametrize("name", ["2xcpu", "8xH100"])
@pytest.mark.parametrize("choices", [{}, {"pp": 2}])
def test_documents_of_one_whole_length_are_todays_step(name: str, choices: dict[str, int]) -> None:
    where = Cluster(name)
    dtype = "float32" if "cpu" in name else "bfloat16"
    plan = Plan.of(MODEL, where, Workload(BATCH, LENGTH), microbatch_size=1, dtype=dtype, **choices)
    alike = plan.changed(workload=replace(plan.workload, lengths=((LENGTH, 1.0),)))
    today, found = (predict(one, where, extrapolate=True) for one in (plan, alike))
    assert found.drawn is None and found.step == today.step and found.parts == today.parts
    assert found.mfu == today.mfu and found.peak_bytes == today.peak_bytes


@pytest.mark.parametrize("name", ["2xcpu", "2xH100"])
def test_two_lengths_are_the_mean_of_what_the_slowest_replica_attends_to(name: str) -> None:
    whole = predicted(Cluster(name), dp=2).step.value
    of_pair = whole / (BATCH / 2 * LENGTH * (LENGTH + 1) / 2)
    by_hand = [batch.sum(axis=1).max() * of_pair for batch in _pairs(2)]
    found = predicted(Cluster(name), TWO, dp=2)
    assert found.drawn is not None
    assert found.drawn.seconds == pytest.approx(by_hand, rel=1e-10)
    assert found.step.value == pytest.approx(np.mean(by_hand), rel=1e-10)
    error = np.std(by_hand, ddof=1) / math.sqrt(NUM_DRAWN)
    assert found.drawn.error_s == pytest.approx(error, rel=1e-9)
    assert any("16 of them with a standard error" in line for line in found.assumptions)


def test_replicas_that_divide_parameters_wait_in_every_microbatch() -> None:
    whole = predicted(Cluster("2xH100"), dp=2).step.value
    of_pair = whole / (BATCH / 2 * LENGTH * (LENGTH + 1) / 2)
    by_hand = [batch.max(axis=0).sum() * of_pair for batch in _pairs(2)]
    found = predicted(Cluster("2xH100"), TWO, dp=2, sharding="zero3")
    assert found.step.value == pytest.approx(np.mean(by_hand), rel=1e-10)
    assert found.step.value > predicted(Cluster("2xH100"), TWO, dp=2).step.value


def test_parts_of_a_step_are_the_step() -> None:
    where = Cluster("2xH100")
    plan = Plan.of(MODEL, where, Workload(BATCH, LENGTH, TWO), microbatch_size=1, dp=2, dtype="bfloat16")
    found = predict(plan, where)
    beside = ("reducing", "gathering", "REDUCE", "GATHER")
    total = sum(value for name, value in found.parts.items() if not name.startswith(beside))
    assert total == pytest.approx(found.step.value, rel=0.01)
    assert found.parts["attention"] > 0
    value, drawn = found.step.value, found.drawn
    found.forget()
    assert found.step.value == value and found.drawn is drawn


def test_shorter_documents_take_less_and_longer_batches_wait_less() -> None:
    where = Cluster("8xH100")
    full, mixed, short = (predicted(where, lengths, dp=8).step.value for lengths in ((), TWO, ((16, 1.0),)))
    assert short < mixed < full
    waits = []
    for batch in (16, 128):
        found = predicted(where, TWO, batch=batch, dp=8).step.value
        alone = predicted(Cluster("1xH100"), TWO, batch=batch).step.value
        waits.append(found / alone * 8)
    assert 1 < waits[1] < waits[0]


@pytest.mark.parametrize("choices", [{"cp": 4}, {"cp": 4, "context": "ulysses"}, {"cp": 2, "tp": 2}])
def test_devices_that_share_sequences_share_documents(choices: dict[str, Any]) -> None:
    full, mixed, short = (
        predicted(Cluster("4xH100"), lengths, **choices).step.value for lengths in ((), TWO, ((16, 1.0),))
    )
    assert short < mixed < full


def test_an_encoder_has_no_documents() -> None:
    where = Cluster("1xH100")
    model = ModelSpec.decoder(2, 64, 4, max_sequence_length=LENGTH).changed(num_encoder_layers=1)
    plan = Plan.of(model, where, Workload(4, LENGTH, TWO), dtype="bfloat16")
    with pytest.raises(PlanError, match="encoder-decoder"):
        _ = predict(plan, where).step


def test_lengths_are_priced_down_to_a_few_tokens() -> None:
    assert priced_lengths(64) == (16, 64) and priced_lengths(8) == (8,)
    assert priced_lengths(4096, 24) == (48, 240, 1008, 4096)
    assert priced_lengths(131072) == (128, 512, 2048, 8192, 32768, 131072)
