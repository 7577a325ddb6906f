"""Microbatches in flight against closed forms."""

import pytest

from meshwright.catalog import find_schedule
from meshwright.schedules.in_flight import in_flight


@pytest.mark.parametrize(("p", "m"), [(1, 4), (4, 8), (8, 3), (8, 64)])
def test_in_flight_of_1f1b_and_gpipe(p, m):
    found = [[v.saved for v in device] for device in in_flight(find_schedule("1f1b"), p, m, 1)]
    assert found == [[(min(p - stage, m),)] for stage in range(p)]
    assert [[v.saved for v in device] for device in in_flight(find_schedule("gpipe"), p, m, 1)] == [
        [(m,)]
    ] * p


@pytest.mark.parametrize(
    ("p", "v", "expected"), [(4, 2, [11, 9, 7, 5]), (8, 2, [23, 21, 19, 17, 15, 13, 11, 9])]
)
def test_in_flight_of_interleaved(p, v, expected):
    """2 (p - r - 1) + (v - 1) p + 1 chunks on rank r (Narayanan et al., arXiv 2104.04473)."""
    found = in_flight(find_schedule("interleaved_1f1b"), p, 8 * p, v)
    assert [max(sum(vector.saved) for vector in device) for device in found] == expected
    assert all(vector.stages == (r, r + p) for r, device in enumerate(found) for vector in device)


def test_in_flight_of_a_split_backward_counts_what_waits_for_w():
    found = in_flight(find_schedule("zb_h1"), 4, 8, 1)
    assert max(vector.saved[0] for vector in found[0]) == 4
    assert max(vector.pending[0] for vector in found[3]) > 0


def test_a_moment_that_another_exceeds_everywhere_is_left_out():
    for device in in_flight(find_schedule("interleaved_1f1b"), 4, 16, 4):
        for one in device:
            others = [other.saved for other in device if other is not one]
            assert not any(all(a <= b for a, b in zip(one.saved, other, strict=True)) for other in others)


@pytest.mark.parametrize(("p", "v", "expected"), [(1, 1, [2]), (4, 2, [12, 10, 8, 6])])
def test_a_forward_beside_the_backward_in_front_of_it_is_one_more(p, v, expected):
    name = "1f1b" if p == 1 else "interleaved_1f1b"
    found = in_flight(find_schedule(name), p, 8 * p, v, "backward first")
    assert [max(sum(vector.saved) for vector in device) for device in found] == expected


def test_pairs_that_begin_with_the_forward_keep_what_the_order_keeps():
    paired, plain = (
        in_flight(find_schedule("dualpipe_v"), 4, 16, 2, pairs) for pairs in ("forward first", "")
    )
    assert paired == plain
