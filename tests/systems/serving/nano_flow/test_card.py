"""The card's numbers that are few steps; all of them stand in its results."""

from __future__ import annotations

import pytest

from meshwright.systems.serving.nano_flow import card


def test_a_steady_batch_fills_the_step_as_far_as_blocks_last() -> None:
    """512 in and out: half of the tokens decode, and see 768 each; with 1,024 out blocks are the limit."""
    assert card.steady_batch("llama-2-70b", 512, 512)[3:] == (1024, 1024 * 768)
    assert card.steady_batch("llama-2-70b", 512, 512).num_tokens == 2048
    assert card.steady_batch("llama-2-70b", 512, 0).num_decodes == 0
    assert card.steady_batch("llama-2-70b", 512, 1024).num_decodes < 1365


def test_the_optimum_is_that_of_measured_products() -> None:
    assert card.optimum() == pytest.approx(1857, rel=0.1) and card.optimum() < card.data_sheet_optimum()


@pytest.mark.slow
def test_nano_batches_win_and_alone_lose() -> None:
    assert card.control(512, 512) < 0.95 < 1.05 < card.gain(512, 512) < 1.62
