"""What a step waits for blocks that come while others compute: closed forms, and one that was followed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.serving.weight.fetched_step import TimedBlock, fetched_step_s, window_bytes

SECONDS = st.floats(0.125, 8.0)
BLOCKS = st.lists(st.builds(TimedBlock, SECONDS, SECONDS), min_size=1, max_size=9)


@pytest.mark.parametrize("window", [2, 3, 5])
@given(num_blocks=st.integers(1, 12), compute_s=SECONDS, load_s=SECONDS)
def test_equal_blocks_take_the_longer_of_both(
    window: int, num_blocks: int, compute_s: float, load_s: float
) -> None:
    found = fetched_step_s([TimedBlock(compute_s, load_s)] * num_blocks, window)
    assert found == pytest.approx(num_blocks * max(compute_s, load_s))


@given(blocks=BLOCKS, window=st.integers(2, 6))
def test_a_step_takes_no_less_than_either_and_no_more_than_both(
    blocks: list[TimedBlock], window: int
) -> None:
    found = fetched_step_s(blocks, window)
    computes, loads = sum(b.compute_s for b in blocks), sum(b.load_s for b in blocks)
    assert max(computes, loads) - 1e-9 <= found <= computes + loads
    assert fetched_step_s(blocks, window + 1) <= found + 1e-9


def test_a_window_of_two_waits_for_one_block_at_a_time() -> None:
    """Blocks compute 1 and 3 s, come in 3 and 1 s. Of a window of two the long one comes beside the other's long compute, the
    short one beside the short: 1 + 3 a step. Of blocks that compute 3 and 1 s and come in 3 and 1 s, the first (3 s) comes
    beside the second's second, so 2 s are waited for: 6."""
    assert fetched_step_s([TimedBlock(1.0, 3.0), TimedBlock(3.0, 1.0)], 2) == pytest.approx(4.0)
    assert fetched_step_s([TimedBlock(3.0, 3.0), TimedBlock(1.0, 1.0)], 2) == pytest.approx(6.0)


def test_what_stays_is_time_in_which_others_come() -> None:
    """Four seconds to come, one of its own compute, three of a block that stays, one of the host."""
    blocks = [TimedBlock(1.0, 4.0), TimedBlock(3.0), TimedBlock(1.0)]
    assert fetched_step_s(blocks, 2) == pytest.approx(5.0)
    assert fetched_step_s([TimedBlock(1.0, 9.0), *blocks[1:]], 2) == pytest.approx(9.0)


def test_the_window_at_its_largest_goes_around_the_end() -> None:
    """The head beside the embedding of the next step."""
    assert window_bytes([5, 1, 2, 6], 2) == 11
    assert window_bytes([5, 1, 2, 6], 9) == 14
    assert window_bytes([], 2) == 0
