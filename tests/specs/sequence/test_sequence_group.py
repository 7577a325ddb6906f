"""Groups of ranks that share sequences: what they are checked for, and what costs say of them."""

import math

import pytest

from meshwright.specs.error import PlanError
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
