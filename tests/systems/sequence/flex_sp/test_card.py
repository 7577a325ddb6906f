"""The card of FlexSP: claims that can fail, the paper's job, and the published bins."""

import statistics

import pytest

from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.systems.sequence.flex_sp.published_job import published_costs, step, wikipedia_batch


def test_the_card_has_claims_that_can_fail() -> None:
    card = system("flex_sp")
    assert "2412.01523" in card.paper and card.is_simulated
    assert all(claim.is_evidence for claim in card.claims)


def test_scaling_is_predicted_better_than_as_perfect() -> None:
    found = reproduce("flex_sp", only="rate of flex_sp on 64 GPUs")["claims"]
    assert [each["passed"] and each["closer_than_null"] for each in found] == [True]


def test_drawn_lengths_have_the_published_bins() -> None:
    """95.6 % of sequences up to 4K with 57 % of the tokens, a mean of 1,014, a median of 347, a p99 of 10,919."""
    lengths = wikipedia_batch(7, 2048, 100_000)
    short = [length for length in lengths if length <= 4096]
    assert len(short) / len(lengths) == pytest.approx(0.956, abs=0.003)
    assert sum(short) / sum(lengths) == pytest.approx(0.57, abs=0.02)
    assert statistics.mean(lengths) == pytest.approx(1014, rel=0.04)
    assert statistics.median(lengths) == pytest.approx(347, rel=0.03)
    assert statistics.quantiles(lengths, n=100)[98] == pytest.approx(10_919, rel=0.06)


def test_the_longest_sequence_allowed_needs_all_gpus() -> None:
    assert published_costs("7B", 384).least_degree(384 * 1024) == 64
    assert published_costs("7B", 192).least_degree(192 * 1024) == 32
    assert {
        load.price.degree for packed in step("static", "7B", 384, 64, 0).parts for load in packed.loads
    } == {64}
