"""Rounded batches are near to those that they stand for, and few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.simulated_case import program

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.rounded_steps import RoundedSteps, rounded_batch

CHUNKS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300)), max_size=3)


@given(CHUNKS, st.integers(0, 300), st.integers(1, 3000))
def test_a_rounded_batch_has_as_many_tokens_and_nearly_all_else(
    chunks: list[tuple[int, int]], decodes: int, seen: int
) -> None:
    batch = BatchShape.of(chunks, decodes, decodes * seen)
    near = rounded_batch(batch)
    assert near.num_chunks == batch.num_chunks and (near.num_decodes > 0) == (decodes > 0)
    assert near.num_tokens == batch.num_tokens or not chunks
    if decodes:
        assert near.num_decodes == pytest.approx(decodes, rel=0.05, abs=1.0)
        assert near.num_context / near.num_decodes == pytest.approx(seen, rel=0.05, abs=1.0)
    if chunks:
        per_token = batch.chunk_pairs / batch.chunk_tokens
        assert near.chunk_pairs / near.chunk_tokens == pytest.approx(per_token, rel=0.05, abs=1.0)


def test_what_is_rounded_is_simulated_once_and_takes_nearly_as_long() -> None:
    steps, exact = RoundedSteps(program()), program()
    for context in (90_000, 91_000):
        batch = BatchShape.of([(0, 400)], 100, context)
        assert steps.step(batch).latency_s == pytest.approx(exact.step(batch).latency_s, rel=0.02)
    assert rounded_batch(BatchShape.of([(0, 400)], 100, 90_000)) == rounded_batch(
        BatchShape.of([(0, 400)], 100, 91_000)
    )
    assert steps.run(7, 7 * 200, 40, 1e9)[0] == 40
