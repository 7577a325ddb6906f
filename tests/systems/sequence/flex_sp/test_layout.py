"""The groups of one micro-batch: prices are those of the costs, nothing is over memory, and improving never hurts."""

import random
from dataclasses import replace

import pytest

from meshwright.specs.sequence.degree_price import DegreePrice
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.systems.sequence.flex_sp.layout import Load, Packed, Packing, rebalanced

COSTS = SequenceCosts(
    square_s=1e-6, token_s=1e-3, fixed_s=0.05, token_bytes=1, state_bytes=0, capacity_bytes=100,
    exchange_bytes=2, exchange_s=0.01, rates={2: 1e4, 4: 5e3, 8: 1e3},
)  # fmt: skip
KINDS = {
    "all-to-all": COSTS,
    "a ring": replace(COSTS, is_beside=True, exchange_bytes=0, ring_bytes=1),
    "fetched parameters": replace(COSTS, least_s=0.2),
}


def prices(costs: SequenceCosts = COSTS, most: int = 8) -> list[DegreePrice]:
    return [DegreePrice.of(costs, degree) for degree in (1, 2, 4, 8) if degree <= most]


@pytest.mark.parametrize("costs", KINDS.values(), ids=KINDS)
def test_prices_of_sums_are_the_costs_of_lengths(costs: SequenceCosts) -> None:
    drawn = random.Random(0)
    for degree in (1, 2, 4, 8):
        for count in (1, 3, 10):
            lengths = [drawn.randint(1, 80) for _ in range(count)]
            squares = sum(length**2 for length in lengths)
            found = DegreePrice.of(costs, degree).seconds(squares, sum(lengths))
            assert found == pytest.approx(costs.seconds(lengths, degree), rel=1e-12)


def packing(lengths: list[int], costs: SequenceCosts = COSTS, num_ranks: int = 8) -> Packing:
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    return Packing(lengths, order, num_ranks, prices(costs))


@pytest.mark.parametrize("costs", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_a_layout_holds_all_sequences_and_is_no_worse_than_groups_that_are_all_alike(
    costs: SequenceCosts, seed: int
) -> None:
    drawn = random.Random(seed)
    lengths = [801]
    while sum(lengths) > 600:  # of the 800 tokens that the ranks hold
        lengths = [min(300, round(10 * drawn.paretovariate(0.9))) for _ in range(14)]
    found = packing(lengths, costs)
    best = found.best()
    assert best is not None
    assert sorted(number for load in best.loads for number in load.members) == list(range(14))
    assert sum(load.price.degree for load in best.loads) <= 8
    for load in best.loads:
        own = [lengths[number] for number in load.members]
        assert (load.tokens, load.squares) == (sum(own), sum(length**2 for length in own))
        assert load.tokens <= load.price.degree * costs.capacity_tokens
        assert costs.seconds(own, load.price.degree) <= best.seconds * (1 + 1e-12)
    alike = [found.packed((degree,) * (8 // degree)) for degree in (1, 2, 4, 8)]
    assert all(best.seconds <= other.seconds for other in alike if other)


def test_a_long_sequence_has_many_ranks_and_short_ones_few() -> None:
    best = packing([380, 30, 30, 30, 30]).best()
    assert best is not None
    degrees = {number: load.price.degree for load in best.loads for number in load.members}
    assert degrees[0] == 4 and set(degrees.values()) - {4} <= {1, 2}


def test_what_fits_on_no_layout_is_none() -> None:
    assert packing([801]).best() is None
    assert packing([300, 300, 300]).best() is None


def test_sequences_are_moved_and_exchanged_until_the_last_group_ends_first() -> None:
    lengths = [50, 40, 30, 20]
    loads = (Load(prices()[0]), Load(prices()[0]))
    for number, length in enumerate(lengths):
        loads[number // 2].add(number, length)
    found = rebalanced(Packed(loads, max(load.seconds for load in loads)), lengths)
    assert sorted(sorted(load.members) for load in found.loads) == [[0, 3], [1, 2]]
    assert loads[0].members == [0, 1]  # what was given is as it was
