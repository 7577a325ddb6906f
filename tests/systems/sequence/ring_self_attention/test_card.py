"""Claims by the model of memory: flat with sequence parallelism, growing with tensor parallelism, more of both in 16 GB."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.specs.error import UnknownNameError
from meshwright.systems.sequence.ring_self_attention import card as rsa


def test_claims_stand_as_the_page_tells_them() -> None:
    card = system("ring_self_attention")
    assert "2105.13120" in card.paper and card.is_simulated and card.is_executed
    own = [claim for claim in card.claims if ":" not in claim.by]
    found = [claim.judge(getattr(rsa, claim.by)(**claim.arguments)) for claim in own]
    assert max(one.claim.tolerance for one in found) <= 0.25
    assert len(found) == 11 and all(one.passed for one in found)


def test_memory_of_a_device_is_flat_where_sequences_are_divided() -> None:
    sizes = [rsa.peak_mb("sequence", number, 64 * number) for number in (1, 2, 4)]
    assert max(sizes) / min(sizes) < 1.01
    grown = [rsa.peak_mb("tensor", number, 64 * number) for number in (1, 2, 4)]
    assert grown[1] > 1.1 * grown[0] and grown[2] > 1.3 * grown[1]


def test_gradients_of_all_keys_bound_the_batch() -> None:
    """Four times the devices do not hold four times the batch."""
    few, many = (rsa.most("sequence", number, "batch") for number in (16, 64))
    assert 2 * few < many < 3 * few


def test_other_kinds_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        rsa.peak_mb("pipeline", 2, 64)
