"""Drawn lengths have the mean and the variation that they say."""

from __future__ import annotations

from statistics import mean, pstdev

import pytest

from meshwright.serving.request.drawn_lengths import DrawnLengths


def prompts(drawn: DrawnLengths) -> list[int]:
    """Their lengths."""
    return [each.num_prompt_tokens for each in drawn.requests()]


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0])
def test_lengths_have_the_mean_and_the_variation_that_was_asked_for(variation: float) -> None:
    """Of 10,000 requests; prompts and outputs apart, the same again for the same seed."""
    drawn = DrawnLengths(prompt=400, output=90, num=10_000, variation=variation)
    found = drawn.requests()
    for lengths, wanted in (
        ([each.num_prompt_tokens for each in found], 400),
        ([each.num_output_tokens for each in found], 90),
    ):
        assert mean(lengths) == pytest.approx(wanted, rel=0.04)
        assert pstdev(lengths) / mean(lengths) == pytest.approx(variation, abs=0.04)
        assert min(lengths) >= 1
    assert len({each.id for each in found}) == 10_000 and prompts(drawn) == prompts(drawn)
    assert not variation or prompts(drawn) != prompts(DrawnLengths(400, 90, 10_000, variation, seed=1))
