"""Filters keep what their definition says, whatever the logits: equal ones, 16-bit ones, flat ones, sharp ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.sampling.exact_distribution import exact_distribution

from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.sampling.kept_tokens import NUCLEUS_SIZES, kept_tokens
from meshwright.serving.sampling.largest import largest


def coarse(values: np.ndarray) -> np.ndarray:
    """As 16-bit logits are: many are equal."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 600),
    st.sampled_from([0.01, 1.0, 8.0]),
    st.sampled_from([0, 1, 3, 40, 300]),
    st.sampled_from([1.0, 0.999, 0.87, 0.3, 1e-9]),
    st.sampled_from([0.0, 0.03, 0.6, 1.0]),
    st.sampled_from([0.2, 1.0, 3.0]),
)
def test_kept_tokens_are_those_of_the_definition(
    seed, size, spread, top_k, top_p, min_p, temperature
) -> None:
    logits = coarse(np.random.default_rng(seed).normal(scale=spread, size=size))
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    exact = np.array(exact_distribution(logits, parameters))
    ids, weights = kept_tokens(logits, parameters)
    np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(exact))
    np.testing.assert_allclose(weights / weights.sum(), exact[ids], rtol=1e-12)


@pytest.mark.parametrize("top_p", [0.001, 0.01, 0.5, 0.9999])
def test_a_nucleus_of_any_size_is_found(top_p) -> None:
    size = 8 * NUCLEUS_SIZES[-1]
    logits = np.random.default_rng(1).normal(scale=0.5, size=size).astype(np.float32)
    ids, weights = kept_tokens(logits, SamplingParameters(top_p=top_p))
    exact = np.exp(logits.astype(np.float64))
    order = np.argsort(-logits, kind="stable")
    reached = np.cumsum(exact[order]) / exact.sum()
    assert len(ids) == np.searchsorted(reached, top_p) + 1
    np.testing.assert_array_equal(ids, order[: len(ids)])


@given(st.integers(0, 2**32 - 1), st.integers(1, 2000), st.integers(0, 2500))
def test_the_largest_are_those_of_a_whole_sort(seed, size, count) -> None:
    values = np.random.default_rng(seed).integers(0, 50, size).astype(np.float32)
    expected = np.argsort(-values, kind="stable")[:count]
    np.testing.assert_array_equal(largest(values, count), expected)
