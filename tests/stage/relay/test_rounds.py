"""Rounds of relays: names are of one round each, again has names of its own, and what is owed says how it comes home."""

from __future__ import annotations

import pytest

from meshwright.stage.relay.rounds import RELAYS, RING, TOKEN_RING, Rounds


@pytest.mark.parametrize("rounds", RELAYS)
def test_a_forward_again_shares_no_compute_and_no_sum_with_the_first(rounds: Rounds) -> None:
    first, again, backward = rounds.all
    assert not set(first.computes) & set(again.computes)
    assert not set(backward.computes) & {*first.computes, *again.computes}
    for one, other in ((first, again),):
        sums = [{own.total, own.owed.total if own.owed else ""} - {""} for own in (one, other)]
        assert sums[0] and not sums[0] & sums[1]
    assert first.messages == again.messages


@pytest.mark.parametrize("rounds", RELAYS)
def test_a_forward_makes_its_result_in_one_place(rounds: Rounds) -> None:
    """A sum where it is, or something that it owes."""
    assert bool(rounds.forward.total) != bool(rounds.forward.owed)
    assert rounds.backward.total and rounds.backward.owed


def test_a_token_ring_is_a_ring_with_its_operands_exchanged() -> None:
    assert RING.operand in TOKEN_RING.forward.stays and TOKEN_RING.operand in RING.forward.stays
    assert TOKEN_RING.backward.sends_prepared and not RING.backward.prepares
