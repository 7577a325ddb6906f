"""Attention whose queries travel, and by whole rows of scores, is that of the whole sequence: outputs and all gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executor import context_parallel as cp
from tests.executor.ops.attention.test_part_attention import TOLERANCES, compared
from tests.executor.ops.relay.relays_in_process import by_scores, by_token_ring

from meshwright.executor.ops.attention.causal_attention import HeadLayout

KINDS = {"queries travel": by_token_ring, "whole rows of scores": by_scores}


@given(
    kind=st.sampled_from(sorted(KINDS)),
    degree=st.integers(1, 5),
    arrangement=st.sampled_from(["contiguous", "zigzag", "stripe"]),
    run=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 3)]),
    window=st.sampled_from([0, 0, 1, 5, 37]),
    has_documents=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_it_is_attention_of_the_whole_sequence(
    kind: str,
    degree: int,
    arrangement: str,
    run: int,
    heads: tuple[int, int],
    window: int,
    has_documents: bool,
    dtype: torch.dtype,
) -> None:
    parts = cp.parts_of(run * 2 * degree, degree, arrangement)
    layout = HeadLayout(heads[0], heads[1], 8, window)
    for found, expected in compared(KINDS[kind], parts, layout, dtype, has_documents):
        torch.testing.assert_close(found.to(torch.float64), expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("degree", [2, 8])
def test_errors_in_16_bits_do_not_grow_with_the_ring(degree: int) -> None:
    """Results are rounded once on their way, and added in float32: with 8 ranks at most 1.2 times what one call has."""
    layout = HeadLayout(2, 2, 16)
    errors = {}
    for number in (1, degree):
        found = compared(
            by_token_ring, cp.parts_of(256, number, "zigzag" if number > 1 else "contiguous"), layout, torch.bfloat16, False
        )  # fmt: skip
        errors[number] = [float((x.double() - expected).abs().mean()) for x, expected in found]
    for one, many in zip(errors[1], errors[degree], strict=True):
        assert many <= 1.2 * one
