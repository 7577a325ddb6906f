"""Claims that need no processes; where two directions pay, and where they do not."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.systems.sequence.token_ring import card as token_ring


def test_claims_stand_as_the_page_tells_them() -> None:
    """Two regimes hold; of the published steps those hold in which an A10's attention at half its peak is no matter."""
    card = system("token_ring")
    assert "2412.20501" in card.paper and card.is_simulated and card.is_executed
    own = [claim for claim in card.claims if ":" not in claim.by]
    found = [claim.judge(getattr(token_ring, claim.by)(**claim.arguments)) for claim in own]
    assert max(claim.tolerance for claim in own) <= 0.25
    assert all(one.passed for one in found if one.claim.by == "messages_ratio")
    messages = [one for one in found if one.claim.arguments.get("what") == "messages"]
    assert len(messages) == 2 and all(one.passed for one in messages)
    assert {one.claim.paper_value for one in found if not one.passed} == {7.6, 3.5}


def test_two_directions_halve_a_step_on_links_of_pairs_only() -> None:
    assert token_ring.messages_ratio(4, 32) <= 0.55
    behind_switch = token_ring.messages_ratio(4, 32, "switch")
    assert behind_switch == pytest.approx(0.70, abs=0.01)


@pytest.mark.parametrize(("kv_heads", "wanted"), [(32, 0.5), (16, 1.0), (8, 2.0), (4, 4.0)])
def test_fewer_key_value_heads_make_a_ring_cheaper(kv_heads: int, wanted: float) -> None:
    assert token_ring.messages_ratio(4, kv_heads) == pytest.approx(wanted, rel=0.02)


def test_the_link_rate_is_that_of_the_rings_step() -> None:
    trace = token_ring.simulated("ring", token_ring.four_a10(token_ring.fitted_bytes_per_s(), "pairs"))
    begin, end = token_ring.rows_s(trace, "SEND_BLOCK")[0]
    assert end - begin == pytest.approx(token_ring.RING_STEP_S + token_ring.LATENCY_S)
