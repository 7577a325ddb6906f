"""Groups of ranks that share sequences: what they are checked for, and what costs say of them."""

import math
from dataclasses import replace

import pytest

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.group_seconds import busy_seconds, circulated_tokens, finish_seconds, imbalance
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup

COSTS = SequenceCosts(
    square_s=2e-9, token_s=1e-6, fixed_s=0.5, token_bytes=10, state_bytes=100, capacity_bytes=1100,
    exchange_bytes=8, exchange_s=0.25, rates={2: 4e6, 8: 1e6},
)  # fmt: skip


def test_every_rank_runs_its_groups_in_their_one_order() -> None:
    groups = (SequenceGroup((0, 1), (2,)), SequenceGroup((2,), (0, 3)), SequenceGroup((1,), (1,)))
    batch = GroupedBatch((5, 7, 20, 1), 3, groups)
    assert batch.of_rank == ((0,), (0, 2), (1,))
    assert batch.num_tokens == 33
    assert batch.group_lengths(groups[1]) == (5, 1)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([((0,), (0,))], "sequence 1 of 2 is in 0 groups"),
        ([((0,), (0, 1)), ((1,), (1,))], "sequence 1 of 2 is in 2 groups"),
        ([((0, 0), (0, 1))], "a group of the ranks"),
        ([((2,), (0, 1))], "a group of the ranks"),
        ([((), (0, 1))], "a group of the ranks"),
        ([((0,), (0, 1)), ((1,), ())], "has no sequences"),
    ],
)
def test_what_is_no_grouping_is_refused(
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        GroupedBatch((3, 4), 2, tuple(SequenceGroup(*each) for each in groups))


def test_costs_are_the_formula() -> None:
    lengths = (1000, 500)
    compute_s = (2e-9 * 1_250_000 + 1e-6 * 1500) / 2 + 0.5
    assert COSTS.seconds(lengths, 2) == pytest.approx(compute_s + 8 * 1500 / (2 * 4e6) + 0.25, rel=1e-12)
    assert COSTS.rate(4) == COSTS.rate(8) == COSTS.rate(64) == 1e6  # of the next larger degree that is known
    assert math.isinf(COSTS.rate(1)) and COSTS.exchange_seconds(lengths, 1) == 0
    assert COSTS.held_bytes(lengths, 2) == 10 * 1500 / 2 + 100


def test_a_sequence_needs_as_many_ranks_as_hold_its_tokens() -> None:
    assert COSTS.capacity_tokens == 100
    assert [COSTS.least_degree(length) for length in (1, 100, 101, 200, 201)] == [1, 1, 2, 2, 3]
    with pytest.raises(PlanError, match="divide the state"):
        SequenceCosts(1, 1, 1, token_bytes=10, state_bytes=1100, capacity_bytes=1100).least_degree(1)


def test_a_ring_brings_a_token_to_all_other_ranks() -> None:
    ring = replace(COSTS, exchange_bytes=0, exchange_s=0, ring_bytes=4)
    assert ring.exchange_seconds((1000,), 2) == pytest.approx(4 * 1000 / (2 * 4e6), rel=1e-12)
    assert ring.exchange_seconds((1000,), 8) == pytest.approx(7 * 4 * 1000 / (8 * 1e6), rel=1e-12)


def test_what_is_offloaded_frees_memory_and_costs_what_computes_do_not_hide() -> None:
    offloading = replace(COSTS, offload_bytes=8, offload_rate=1e7)
    compute_s = 2e-9 * 1000**2 + 1e-6 * 1000
    assert offloading.held_bytes((1000,), 1, 0.5) == (10 - 0.5 * 8) * 1000 + 100
    assert [offloading.least_degree(1000, share) for share in (0.0, 0.5, 1.0)] == [10, 6, 2]
    # 1,000 of 10,000 bytes fit on the device, 1,500 in the host: of two bytes a token that stay, 500 tokens a rank
    assert replace(offloading, host_bytes=1500).least_degree(1000, 1.0) == 4
    hidden = offloading.hidden_offload(900)  # 8 * 900 bytes at 1e7 take 0.72 ms, the forward 0.84 ms
    assert hidden == 1.0 and offloading.offload_seconds((900,), 3, hidden) == 0.0
    slow = replace(offloading, offload_rate=4e6)  # 2 ms each way, beside 1 ms and 2 ms
    assert slow.hidden_offload(1000) == pytest.approx(0.5, rel=1e-12)
    assert slow.offload_seconds((1000,), 1, 0.5) == pytest.approx(0.0, abs=1e-12)
    assert slow.seconds((1000,), 1, 1.0) == pytest.approx(compute_s + 0.5 + 1e-3, rel=1e-12)
    assert COSTS.hidden_offload(1000) == 0.0
    with pytest.raises(PlanError, match="at no rate"):
        COSTS.seconds((1000,), 1, 0.5)
    with pytest.raises(PlanError, match=r"offloads 1\.5 of what it keeps"):
        GroupedBatch((3,), 1, (SequenceGroup((0,), (0,), 1.5),))


def test_a_group_begins_when_the_last_of_its_ranks_is_free() -> None:
    costs = SequenceCosts(0, 1, 0, token_bytes=1, state_bytes=0, capacity_bytes=100)
    groups = (
        SequenceGroup((0,), (0,)),
        SequenceGroup((0, 1), (1,)),
        SequenceGroup((1,), (2,)),
        SequenceGroup((2,), (3,)),
    )
    batch = GroupedBatch((6, 8, 2, 1), 3, groups)
    assert busy_seconds(batch, costs) == [10, 6, 1]
    assert finish_seconds(batch, costs) == [10, 12, 1]  # rank 1 waits 6 s for rank 0
    assert imbalance([10, 6, 1]) == pytest.approx(30 / 17, rel=1e-12) and imbalance([0.0]) == 1.0
    assert circulated_tokens(batch) == 8


def test_a_message_to_every_other_rank_costs_its_start() -> None:
    assert COSTS.exchange_seconds((0,), 5) == pytest.approx(4 * 0.25)


def test_a_group_takes_what_runs_beside_its_computes_at_least() -> None:
    costs = replace(COSTS, least_s=0.7)
    assert costs.seconds((1,), 1) == 0.7 < costs.seconds((20_000,), 1) == COSTS.seconds((20_000,), 1)


def test_a_sequence_needs_a_degree_that_can_be() -> None:
    costs = replace(COSTS, degrees=(1, 4, 8))
    assert [costs.least_degree(length) for length in (100, 101, 400, 401)] == [1, 4, 4, 8]
    with pytest.raises(PlanError, match="needs 9 ranks, and groups have at most 8"):
        costs.least_degree(801)


def test_a_rank_may_be_told_to_hold_fewer_tokens_than_its_memory_does() -> None:
    assert COSTS.holding(0) is COSTS is COSTS.holding(100) and COSTS.capacity_tokens == 100
    assert COSTS.holding(30).capacity_tokens == 30
    assert COSTS.holding(30).least_degree(61) == 3
