"""Static groups: every sequence once, within memory, balanced, of the degree that is asked for or the best one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.slots import described, filler, slot_names
from meshwright.specs.error import PlanError
from meshwright.specs.sequence.group_seconds import busy_seconds, finish_seconds, imbalance
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.static_groups import StaticGroups

COSTS = SequenceCosts(1e-9, 1e-6, 1e-4, 1.0, 0.0, 1000.0, exchange_bytes=8.0, rates={2: 4e6, 4: 2e6, 8: 1e6})
LENGTHS = st.lists(st.integers(1, 3999), min_size=1, max_size=60)


@given(lengths=LENGTHS, degree=st.sampled_from([0, 4]))
def test_groups_are_of_one_degree_and_within_memory(lengths: list[int], degree: int) -> None:
    batch = StaticGroups(degree)(lengths, 4, COSTS)
    assert {group.degree for group in batch.groups} == {4}
    for group in batch.groups:
        assert COSTS.held_bytes(batch.group_lengths(group), 4) <= COSTS.capacity_bytes


@given(lengths=LENGTHS)
def test_the_best_degree_is_no_slower_than_any(lengths: list[int]) -> None:
    best = max(finish_seconds(StaticGroups(adapts=True)(lengths, 8, COSTS), COSTS))
    for degree in (1, 2, 4, 8):
        if degree >= COSTS.least_degree(max(lengths)):
            assert best <= max(finish_seconds(StaticGroups(degree)(lengths, 8, COSTS), COSTS)) * (1 + 1e-12)


def test_many_sequences_are_balanced() -> None:
    batch = StaticGroups(2)([100 + 7 * n % 400 for n in range(200)], 8, COSTS)
    assert imbalance(busy_seconds(batch, COSTS)) < 1.05
    assert {group.ranks for group in batch.groups} == {(0, 1), (2, 3), (4, 5), (6, 7)}


@pytest.mark.parametrize(
    ("grouping", "lengths", "said"),
    [
        (StaticGroups(3), [10], "groups of 3 ranks"),
        (StaticGroups(2), [2500], "2,500 tokens on groups of 2 ranks"),
        (StaticGroups(2, adapts=True), [10], "ranks that adapt"),
        (StaticGroups(adapts=True), [9000], "9,000 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(grouping: StaticGroups, lengths: list[int], said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        grouping(lengths, 8, COSTS)
    assert caught.value.allowed


def test_the_catalog_knows_it() -> None:
    assert "static" in slot_names("sequence_groups")
    assert [each["name"] for each in described("sequence_groups", "static")["options"]] == [
        "degree",
        "adapts",
    ]
    assert filler("sequence_groups", "static(degree=2)") == StaticGroups(2)


def test_what_may_stand_in_a_slot_is_said_once() -> None:
    with pytest.raises(PlanError, match="flex_sp") as refused:
        filler("sequence_groups", "nope")
    assert str(refused.value).count("allowed:") == 1
