"""Seconds of sums in closed form, and where a star begins to be slower than a ring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.cluster.summing import QUICKEST, WAYS, check_sums, crossover_bytes, quickest_sum, sum_s
from meshwright.specs.error import UnknownNameError

GIGABIT = 125e6


def test_eight_devices_on_gigabit_links_by_hand() -> None:
    """32 KiB, 1 ms: 14 ms + 14 / 8 of 0.262 ms; 6 ms + 6 of it; 2 ms + 14 of it."""
    found = [1e3 * sum_s(way, 32768, 8, 1e-3, GIGABIT) for way in WAYS]
    assert found == pytest.approx([14.459, 7.573, 5.670], abs=1e-3)
    assert sum_s(QUICKEST, 32768, 8, 1e-3, GIGABIT) == pytest.approx(5.670e-3, abs=1e-6)
    assert sum_s("star", 32768, 1, 1e-3, GIGABIT) == 0.0


@given(
    members=st.integers(3, 64), latency_s=st.floats(1e-6, 0.1), rate=st.floats(1e5, 1e11), share=st.floats(0.1, 10.0)
)  # fmt: skip
def test_a_star_is_quicker_than_a_ring_exactly_below_the_crossover(
    members: int, latency_s: float, rate: float, share: float
) -> None:
    num_bytes = share * crossover_bytes(members, latency_s, rate)
    star, ring = (sum_s(way, num_bytes, members, latency_s, rate) for way in ("star", "ring"))
    if abs(share - 1.0) > 1e-6:
        assert (star < ring) == (share < 1.0)
    assert sum_s(QUICKEST, num_bytes, members, latency_s, rate) <= min(star, ring)


def test_two_devices_never_need_a_star() -> None:
    assert crossover_bytes(2, 1.0, 1.0) == crossover_bytes(1, 1.0, 1.0) == 0.0
    assert quickest_sum(1.0, 2, 1.0, 1e9) == "ring"


def test_what_is_no_way_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="star"):
        check_sums("stair")
