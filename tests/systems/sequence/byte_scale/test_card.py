"""What the card claims: drawn lengths have the published tails, and steps of the paper's job."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.specs.error import UnknownNameError
from meshwright.systems.sequence import published_lengths as lengths_of
from meshwright.systems.sequence.byte_scale import published_job as job


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("byte_scale")
    assert "2502.21231" in card.paper and card.is_simulated
    assert sum(claim.is_evidence for claim in card.claims) >= 20


def test_published_layer_times_are_of_one_formula() -> None:
    """Two of the four are used; the others are what a s^2 + b s says: 1.8 / 1.8 ms at 8K, 14.1 / 7.5 at 32K."""
    square_s, token_s = job.layer_seconds()
    for kibi, published_ms in ((8, 3.6), (32, 21.6), (64, 63.3), (128, 203.7)):
        tokens = kibi * 1024
        ours_ms = 1e3 * (square_s * tokens**2 + token_s * tokens) / job.NUM_TIMED
        assert ours_ms == pytest.approx(published_ms, rel=0.05)


@pytest.mark.parametrize("data", lengths_of.DATA_SETS)
def test_bins_are_a_distribution_and_draws_have_their_means(data: str) -> None:
    bins = lengths_of.DATA_SETS[data]
    assert sum(one.tokens for one in bins) == pytest.approx(1.0, abs=1e-12)
    assert all(one.low <= one.mean <= one.high for one in bins)
    drawn = np.array(lengths_of.drawn(bins, 400_000_000, 2**21, np.random.default_rng(3)))
    assert drawn.sum() == 400_000_000 and drawn.max() <= 2**21
    for one in bins[:3]:
        own = drawn[(drawn >= one.low) & (drawn < one.high)]
        assert own.mean() == pytest.approx(one.mean, rel=0.05)
        assert own.sum() / drawn.sum() == pytest.approx(one.tokens, rel=0.15)
    cut = lengths_of.drawn(bins, 10_000_000, 65_536, np.random.default_rng(3))
    assert max(cut) == 65_536 and sum(cut) == 10_000_000


@pytest.mark.parametrize("exponent", [-1.0, 1.0, 2.0, 3.7])
def test_an_exponent_is_found_by_its_mean(exponent: float) -> None:
    mean = lengths_of.power_mean(1000, 30_000, exponent)
    assert lengths_of.exponent_of(1000, 30_000, mean) == pytest.approx(exponent, abs=1e-6)


def test_static_groups_cover_the_ranks_in_turn() -> None:
    batch = job.static_groups((2**21, 2**21, 5), 2**21)
    assert [group.ranks[0] for group in batch.groups] == [0, 256, 512]
    assert all(group.degree == 256 for group in batch.groups)
    with pytest.raises(UnknownNameError):
        job.groups_of("balanced", (5,), 2**21)
    with pytest.raises(UnknownNameError):
        job.grouped_steps("balance", "Common Crawl", 2048)


def test_what_is_read_and_what_hops_cost() -> None:
    assert job.loading_seconds(is_remote=True) == 0.0
    assert job.loading_seconds(is_remote=False) == pytest.approx(2.68, abs=0.01)
    found = reproduce("byte_scale", only="seconds over those of its computes")["claims"]
    assert [one["passed"] and one["closer_than_null"] for one in found] == [True]
    assert job.offload_seconds(64, 0.5) == 0.0 < job.offload_seconds(2, 1.0)


@pytest.mark.slow
def test_the_headline_and_the_order_of_the_ablation_hold_and_what_misses_is_known() -> None:
    claims = {one["claim"]: one for one in reproduce("byte_scale")["claims"]}
    missed = [claim for claim, one in claims.items() if not one["passed"]]
    assert len(missed) == 5, missed
    headline = next(one for claim, one in claims.items() if "GitHub: static over" in claim)
    assert headline["passed"] and headline["closer_than_null"]
