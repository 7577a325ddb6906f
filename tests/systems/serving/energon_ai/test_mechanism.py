"""Pools within their budgets; batches that leave a pipeline in order, earlier where stages do not block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import catalog
from meshwright.serving.weight.weight_place import stage_blocks
from meshwright.specs.error import SpecError
from meshwright.systems.serving.energon_ai.mechanism import PeerPool, batch_ends_s

SECONDS = st.floats(0.01, 10.0)
BATCHES = st.integers(1, 5).flatmap(
    lambda stages: st.lists(st.lists(SECONDS, min_size=stages, max_size=stages), min_size=1, max_size=12)
)


@given(BATCHES, st.floats(0.0, 3.0), st.integers(1, 4))
def test_batches_leave_in_order_and_earlier_where_nobody_blocks(
    stage_s: list[list[float]], transfer_s: float, queue: int
) -> None:
    """Whatever jitter there is: never before the work of any stage could be done, and a longer queue delays nobody."""
    flowing = batch_ends_s(stage_s, transfer_s, queue=queue)
    blocking = batch_ends_s(stage_s, transfer_s, blocks=True)
    longer = batch_ends_s(stage_s, transfer_s, queue=queue + 1)
    num_stages, slack = len(stage_s[0]), 1 + 1e-12
    for ends in (flowing, blocking):
        assert list(ends) == sorted(ends)
        for stage in range(num_stages):
            before = sum(stage_s[0][:stage]) + sum(stage_s[-1][stage + 1 :]) + (num_stages - 1) * transfer_s
            assert ends[-1] * slack >= before + sum(each[stage] for each in stage_s)
    assert all(a <= b * slack and c <= a * slack for a, b, c in zip(flowing, blocking, longer, strict=True))


@given(st.integers(1, 40), SECONDS)
def test_equal_stages_are_filled_once(num_batches: int, seconds: float) -> None:
    ends = batch_ends_s([[seconds] * 4] * num_batches)
    assert ends[-1] == pytest.approx((num_batches + 3) * seconds)


def test_a_stage_that_blocks_stands_still_beside_a_longer_batch() -> None:
    """Two stages, batches of 3 and of 1: the short one waits behind the long one in the next stage."""
    stage_s = [[3.0, 3.0], [1.0, 1.0]] * 10
    assert batch_ends_s(stage_s)[-1] == pytest.approx(3 + 10 * 4)
    assert batch_ends_s(stage_s, blocks=True)[-1] == pytest.approx(10 * 6 + 1)


@given(
    st.integers(1, 24), st.floats(0.1, 5.0), st.floats(0.1, 5.0), st.floats(0.0, 10.0), st.integers(1, 5), st.floats(0.0, 1.2)
)  # fmt: skip
def test_a_pool_stays_within_its_budget_with_as_few_layers_away_as_can_be(
    num_layers: int, attention: float, feed_forward: float, head: float, ahead: int, share: float
) -> None:
    sizes = {
        block: attention if block.endswith("attention") else feed_forward if "layers" in block else head
        for block in stage_blocks(range(4, 4 + num_layers), False, True)
    }
    budget = share * sum(sizes.values())
    try:
        pool = PeerPool.within(sizes, budget, ahead)
    except SpecError as error:
        assert all(PeerPool(every, ahead).held_bytes(sizes) > budget for every in range(1, num_layers + 1))
        assert "or more" in str(error)
        return
    assert pool.held_bytes(sizes) <= budget and pool.window == 1 + ahead
    assert len(pool.fetched(list(sizes))) == 2 * (num_layers // pool.every)
    assert all(
        PeerPool(every, ahead).held_bytes(sizes) > budget for every in range(pool.every + 1, num_layers + 1)
    )


def test_of_every_so_many_layers_the_last_is_pooled() -> None:
    pool = catalog.filler("weights", "energon_ai(every=3,gb_per_s=25)")
    blocks = stage_blocks(range(10, 18), True, True)
    assert pool.fetched(blocks) == [
        f"layers.{n}.{part}" for n in (12, 15) for part in ("attention", "feed_forward")
    ]
    assert pool.source.bytes_per_s == 25e9
