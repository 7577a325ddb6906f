"""Columns keep their values in the smallest type that holds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workbench.reading import values

from meshwright.workbench.document.column import Column


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_whole_numbers_come_back(given: list[int]) -> None:
    assert values(Column.of_whole(np.array(given, dtype=np.int64)).to_json()).tolist() == given


@pytest.mark.parametrize(
    ("given", "dtype"), [([0, 255], "u1"), ([0, 256], "u2"), ([0, 65536], "u4"), ([-1, 3], "i4")]
)
def test_the_smallest_type_is_taken(given: list[int], dtype: str) -> None:
    assert Column.of_whole(np.array(given)).to_json()["dtype"] == dtype


def test_one_value_is_said_once_and_what_is_no_number_stays_data() -> None:
    assert Column.exact([2.5, 2.5, 2.5]).to_json() == {"dtype": "f8", "count": 3, "value": 2.5}
    assert np.isnan(values(Column.exact([np.nan, np.nan]).to_json())).all()
