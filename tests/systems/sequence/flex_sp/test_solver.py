"""The mixed-integer program: never worse than the greedy, and as good as the best of all on a micro-batch of five."""

import itertools

import pytest

from meshwright.specs.sequence.degree_price import DegreePrice
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.systems.sequence.flex_sp.layout import Load, Packed, Packing
from meshwright.systems.sequence.flex_sp.mechanism import FlexSp
from meshwright.systems.sequence.flex_sp.solver import solved

COSTS = SequenceCosts(
    square_s=1e-5, token_s=1e-3, fixed_s=0.05, token_bytes=1, state_bytes=0, capacity_bytes=100,
    exchange_bytes=2, rates={2: 1e3, 4: 5e2},
)  # fmt: skip
LENGTHS = [150, 70, 60, 50, 45]
LAYOUTS = ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1))


def best_of_all_s() -> float:
    found = float("inf")
    for layout in LAYOUTS:
        for groups in itertools.product(range(len(layout)), repeat=len(LENGTHS)):
            own = [
                [s for s, at in zip(LENGTHS, groups, strict=True) if at == group]
                for group in range(len(layout))
            ]
            fits = all(sum(each) <= 100 * degree for each, degree in zip(own, layout, strict=True))
            ends = (COSTS.seconds(each, degree) for each, degree in zip(own, layout, strict=True) if each)
            found = min(found, max(ends)) if fits else found
    return found


def prices() -> list[DegreePrice]:
    return [DegreePrice.of(COSTS, degree) for degree in (1, 2, 4)]


def test_it_finds_the_best_where_the_greedy_is_bad() -> None:
    all_together = Load(prices()[2])
    for number, length in enumerate(LENGTHS):
        all_together.add(number, length)
    greedy = Packed((all_together,), all_together.seconds)
    found = solved(LENGTHS, range(5), 4, prices(), greedy, num_buckets=5, limit_s=60)
    assert found.seconds == pytest.approx(best_of_all_s(), rel=1e-6)
    assert found.seconds < greedy.seconds
    assert sorted(number for load in found.loads for number in load.members) == list(range(5))


def test_it_is_never_worse_than_the_greedy_and_here_the_greedy_is_best() -> None:
    greedy = Packing(LENGTHS, range(5), 4, prices()).best()
    assert greedy is not None and greedy.seconds == pytest.approx(best_of_all_s(), rel=1e-9)
    assert solved(LENGTHS, range(5), 4, prices(), greedy, num_buckets=2, limit_s=60) == greedy


def test_a_step_may_have_it() -> None:
    lengths = (150, 20, 20, 35, 70, 12, 9, 80, 60)
    plain, more = (
        FlexSp(lockstep=True, milp_s=seconds).micro_batches(lengths, 4, COSTS) for seconds in (0.0, 5.0)
    )
    assert sum(packed.seconds for packed in more) <= sum(packed.seconds for packed in plain)
