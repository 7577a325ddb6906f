"""Fitted widths cover what was asked, and are wide only where errors are."""

from __future__ import annotations

import numpy as np
import pytest
from fit.cross_validation import width_of
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(-0.5, 0.5), st.floats(0, 1), st.booleans()), min_size=5, max_size=60),
    st.floats(0.5, 0.95),
)
def test_a_fitted_width_covers_what_was_asked_and_never_shrinks(
    rows: list[tuple[float, float, bool]], share: float
) -> None:
    errors = [error for error, _, _ in rows]
    traits = [{"waiting": waiting, "float8": float(is_float8)} for _, waiting, is_float8 in rows]
    found = width_of(errors, traits, ("waiting", "float8"), share)
    assert found.base >= 0 and all(slope >= 0 for slope in found.slopes.values())
    widths = [found.base + sum(found.slopes[name] * each[name] for name in found.slopes) for each in traits]
    outside = sum(abs(error) > width + 1e-6 for error, width in zip(errors, widths, strict=True))
    assert outside <= (1 - share) * len(rows) + 1e-3 * len(rows)


def test_a_fitted_width_is_wide_only_where_errors_are() -> None:
    random = np.random.default_rng(0)
    has = np.arange(400) % 2
    errors = random.normal(0, np.where(has, 0.3, 0.05))
    found = width_of(list(errors), [{"experts": float(each)} for each in has], ("experts", "float8"), 0.8)
    inside = np.abs(errors) <= found.base + found.slopes["experts"] * has + 1e-9
    assert inside[has == 1].mean() == pytest.approx(0.8, abs=0.02)
    assert inside[has == 0].mean() == pytest.approx(0.8, abs=0.02)
    assert found.base == pytest.approx(1.28 * 0.05, rel=0.2), (
        "80 % of a normal error lie within 1.28 deviations"
    )
    assert found.slopes["float8"] == 0.0, "nothing was seen of it"


def test_errors_of_both_signs_count_alike() -> None:
    traits = [{} for _ in range(10)]
    up = width_of([0.01 * i for i in range(10)], traits, (), 0.8)
    down = width_of([-0.01 * i for i in range(10)], traits, (), 0.8)
    assert up.base == pytest.approx(down.base) and 0.07 - 1e-6 <= up.base <= 0.08 + 1e-6
