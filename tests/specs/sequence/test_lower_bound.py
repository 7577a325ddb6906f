"""The lower bound: no grouping that anybody draws falls below it, and there are steps that reach it."""

import random
from dataclasses import replace

import pytest

from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.lower_bound import lower_bound_s
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.systems.sequence.flex_sp.mechanism import FlexSp

COSTS = SequenceCosts(
    square_s=1e-6, token_s=1e-3, fixed_s=0.05, token_bytes=1, state_bytes=0, capacity_bytes=100,
    exchange_bytes=2, exchange_s=0.01, rates={2: 1e4, 4: 5e3, 8: 1e3},
)  # fmt: skip
KINDS = {
    "all-to-all": COSTS,
    "a ring": replace(COSTS, is_beside=True, exchange_bytes=0, ring_bytes=1),
    "attention beside": replace(COSTS, is_beside=True, square_s=4e-5),
    "fetched parameters": replace(COSTS, least_s=0.2),
    "nothing once": replace(COSTS, fixed_s=0.0, exchange_s=0.0),
    "half may wait at the host": replace(COSTS, offload_bytes=0.5, offload_rate=1e9),
}


def drawn_batch(
    lengths: tuple[int, ...], num_ranks: int, drawn: random.Random, costs: SequenceCosts
) -> GroupedBatch:
    """Groups of any ranks, filled as far as memory goes."""
    offload = 1.0 if costs.offload_rate else 0.0
    left = list(range(len(lengths)))
    drawn.shuffle(left)
    groups = []
    while left:
        least = costs.least_degree(lengths[left[-1]], offload)
        degree = min(num_ranks, drawn.choice((least, least, least + 1, 2 * least, num_ranks)))
        members = [left.pop()]
        while left and drawn.random() < 0.9:
            held = [lengths[number] for number in [*members, left[-1]]]
            if costs.held_bytes(held, degree, offload) > costs.capacity_bytes:
                break
            members.append(left.pop())
        groups.append(SequenceGroup(tuple(drawn.sample(range(num_ranks), degree)), tuple(members), offload))
    return GroupedBatch(lengths, num_ranks, tuple(groups))


@pytest.mark.parametrize("costs", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_no_drawn_grouping_ends_before_the_bound(costs: SequenceCosts, seed: int) -> None:
    drawn = random.Random(seed)
    lengths = tuple(min(700, round(8 * drawn.paretovariate(0.8))) for _ in range(drawn.choice((3, 12, 60))))
    bound_s = lower_bound_s(lengths, 8, costs)
    found = min(max(finish_seconds(drawn_batch(lengths, 8, drawn, costs), costs)) for _ in range(40))
    assert found >= bound_s * (1 - 1e-9)
    assert max(finish_seconds(FlexSp()(lengths, 8, costs), costs)) >= bound_s * (1 - 1e-9)
    in_lockstep = FlexSp(lockstep=True).micro_batches(lengths, 8, costs)
    assert sum(packed.seconds for packed in in_lockstep) >= lower_bound_s(
        lengths, 8, costs, lockstep=True
    ) * (1 - 1e-9)


def test_sequences_that_fill_every_rank_alike_reach_it() -> None:
    lengths = (100,) * 16  # each fills a rank, so every rank has two groups
    assert lower_bound_s(lengths, 8, COSTS) == pytest.approx(2 * COSTS.seconds((100,), 1), rel=2e-4)
    assert max(finish_seconds(FlexSp()(lengths, 8, COSTS), COSTS)) == pytest.approx(
        2 * COSTS.seconds((100,), 1)
    )


def test_a_rank_has_whole_groups() -> None:
    """Nine ranks' tokens on eight: one group of each rank does not hold them, and what a group takes once is not shared."""
    lengths = (10,) * 90
    even_s = (0.05 * 9 + 90 * (1e-3 * 10 + 1e-6 * 100)) / 8
    assert lower_bound_s(lengths, 8, COSTS) > 1.05 * even_s


def test_a_step_is_no_shorter_than_its_longest_sequence() -> None:
    costs = replace(COSTS, exchange_bytes=100)  # what exchanges nothing is the fastest, also alone
    assert lower_bound_s((100, 1), 8, costs) == pytest.approx(costs.seconds((100,), 1), rel=2e-4)


def test_degrees_that_cannot_be_are_not_counted() -> None:
    lengths = (90,) * 8
    assert lower_bound_s(lengths, 8, replace(COSTS, degrees=(8,))) > lower_bound_s(lengths, 8, COSTS)
    assert lower_bound_s(lengths, 8, COSTS, degrees=(8,)) == lower_bound_s(
        lengths, 8, replace(COSTS, degrees=(8,))
    )
