"""The study of ring self-attention: what four processes compute, send and hold; sparse attention around a ring."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.systems.sequence.ring_self_attention import study


def test_processes_are_one_and_send_what_the_closed_form_says(gloo_pool: Pool) -> None:
    assert study.parameter_difference(4, gloo_pool) < 1e-10
    assert study.sent_units(gloo_pool) == 6 * 3


def test_activations_stay_flat_where_tensor_parallel_ones_grow(gloo_pool: Pool) -> None:
    assert study.growth("sequence", gloo_pool) == pytest.approx(1.0, abs=0.01)
    assert study.growth("tensor", gloo_pool) > 1.1


def test_sparse_attention_of_ranks_is_that_of_one() -> None:
    assert study.sparse_difference() < 1e-10
