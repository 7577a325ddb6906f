"""Bytes to experts and back: what a program says is the closed form, and stands beside what ranks counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.evidence import compare
from meshwright.evidence.sent_bytes import SENT, said_bytes
from meshwright.ir.program import Program
from meshwright.lowering import lower
from meshwright.schedules import registered
from meshwright.simulator import simulate_program
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

TOKENS, HIDDEN, LAYERS, CHOSEN, BATCH = 64, 32, 3, 2, 8
MODEL = ModelSpec.decoder(LAYERS, HIDDEN, 4, max_sequence_length=TOKENS).changed(
    architecture="mixtral", num_experts=4, num_experts_per_token=CHOSEN, expert_intermediate_size=48
)
COSTS = FixedCosts.from_times(0.1, 0.1, 0.1)


def program(**choices: Any) -> Program:
    plan = Plan.of(
        MODEL, Cluster("4xcpu"), Workload(BATCH, TOKENS), **{"dp": 4, "dtype": "float32", **choices}
    )
    return lower(plan, registered()[plan.schedule], in_segments=True)


@pytest.mark.parametrize(
    ("choices", "rows_away"),
    [
        ({"ep": 4}, CHOSEN * 3 / 4),
        ({"ep": 2}, CHOSEN / 2),
        ({"ep": 2, "etp": 2}, CHOSEN / 2),
        ({"ep": 4, "dispatch": "once"}, CHOSEN * 3 / 4),  # a device has one expert: nothing goes together
        ({"ep": 2, "dispatch": "once"}, 5 / 6),  # of six pairs of experts five have one that is away
    ],
    ids=str,
)
def test_a_program_says_what_balanced_experts_are_sent(choices: dict[str, Any], rows_away: float) -> None:
    """Of a device's tokens to others and back, forward and backward; gates with those that go once, choices beside them."""
    found, tokens = said_bytes(program(**choices)), BATCH * TOKENS // 4
    numbers = 4 * HIDDEN + (2 * CHOSEN if "dispatch" in choices else 0)
    assert found["ROUTE"] == pytest.approx(LAYERS * tokens * rows_away * numbers * 4)
    assert found.get("CHOICES", 0) == pytest.approx(
        LAYERS * tokens * rows_away * CHOSEN * 8 if "dispatch" in choices else 0
    )
    if (
        "etp" in choices
    ):  # all rows that came to one of two devices go to the other, and terms of results come back
        assert found["GATHER_ROWS"] == pytest.approx(LAYERS * tokens * CHOSEN * 2 * HIDDEN * 4)
        assert found["SCATTER_ROWS"] == found["GATHER_ROWS"]


def test_both_stand_beside_each_other() -> None:
    of = program(ep=2)
    predicted = simulate_program(of, COSTS, COSTS)
    executed = replace(predicted, engine="executed", metadata={SENT: {"ROUTE": 1e6, "OTHER": 1.0}})
    (row,) = compare(predicted, executed).sent
    assert (row.name, row.predicted, row.measured) == (
        "sent by ROUTE, a device",
        said_bytes(of)["ROUTE"],
        1e6,
    )
    assert row in compare(predicted, executed).quantities()
    assert compare(predicted, replace(executed, metadata={})).sent == ()
    assert compare(predicted, predicted).sent == ()
