"""The published example: its order of plans, and what of it fits."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.recorded import results_of
from meshwright.evidence.claim.system_card import system
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.replica_memory import replica_memory
from meshwright.specs.error import OutOfMemoryError
from meshwright.systems.planning.apex import card


def recorded(claim: str) -> dict[str, float]:
    """Our value of every case of a claim, as last recorded."""
    return {
        result["claim"]: result["our_value"]
        for result in results_of(system("apex").folder)
        if claim in result["claim"]
    }


def test_tensor_parallelism_is_before_the_hybrid_and_that_before_stages() -> None:
    """By tokens a second and by time per token, as recorded; a test of claims holds the record against the code."""
    per_s, per_token = (
        list(recorded(what).values()) for what in ("tokens of output a second", "time per token of output")
    )
    assert len(per_s) == 3 and per_s == sorted(per_s, reverse=True)
    assert per_token[:3] == sorted(per_token[:3])


def test_weights_of_blocks_are_as_printed() -> None:
    """63.8, 75.0 and 63.8 GiB."""
    assert [round(card.block_gib(plan), 1) for plan in card.PLANS] == [63.8, 75.0, 63.8]


def test_the_hybrid_of_the_example_does_not_fit_with_its_vocabulary() -> None:
    """Tables of 128,256 tokens and NCCL's buffers leave nothing for keys and values, even of the whole memory."""
    program = card.program_of(card.PLANS["hybrid"])
    with pytest.raises(OutOfMemoryError, match="weights"):
        replica_memory(program, ServingPlan(program.layout).limits(2048), 16, used_share=1.0)


def test_shares_of_a_step_are_whole() -> None:
    """Norms and head are the rest of the three parts."""
    shares = [card.share_of_part("TP2", part) for part in card.PARTS]
    assert 0.95 < sum(shares) < 1.0


def test_a_nearest_row_is_another_one() -> None:
    """No claim is its own null."""
    assert all(plan != other for plan, other in card.NEAREST.items())
    assert all(row != other for row, other in card.NEAREST_ROW.items())
    assert (
        card.nearest_tpot_ms("TP2") == 50.885 and card.nearest_measured_tpot_ms("all requests", 8) == 25.299
    )
