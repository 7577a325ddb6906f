"""What the study measures: nano-batches compute what the batch does, and an end that nobody foresaw costs a token."""

from __future__ import annotations

from meshwright.systems.serving.nano_flow import study


def test_logits_of_nano_batches_are_those_of_the_batch() -> None:
    assert max(study.largest_difference(most) for most in (2, 4)) < 1e-5


def test_one_token_is_wasted_for_each_sequence_that_a_token_ends() -> None:
    assert study.wasted_per_end() == 1.0
