"""Predictions carry an interval and a basis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import BASES, Prediction, SpecError

NUMBERS = st.floats(0, 1e6)


@given(NUMBERS, st.floats(0, 2), NUMBERS, st.sampled_from(BASES), st.sampled_from(BASES))
def test_sum_has_the_weaker_basis_and_contains_the_sum(value, error, other, basis, other_basis):
    total = Prediction.within(value, error, basis) + Prediction.within(other, 0.1, other_basis)
    assert total.contains(value + other)
    assert BASES.index(total.basis) == max(BASES.index(basis), BASES.index(other_basis))


def test_scaling_keeps_the_order_of_the_ends():
    scaled = Prediction(2.0, 1.0, 4.0, "interpolated").scaled(1e3)
    assert (scaled.low, scaled.value, scaled.high) == (1e3, 2e3, 4e3)
    assert not scaled.contains(5e3)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 2, 3, "interpolated"),
        (1, 0, 0.5, "interpolated"),
        (1, 1, 1, "guessed"),
        (float("nan"), 0, 1, "never seen"),
    ],
)
def test_what_is_no_prediction_is_refused(arguments):
    with pytest.raises(SpecError):
        Prediction(*arguments)
