"""ByteScale's groups: everything is placed once within what ranks hold, little travels, and ranks are even."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.sequence_lengths import UNTUNED
from benchmarks.sequence_steps import (
    FILES,
    NUM_RANKS,
    TAILS,
    costs,
    of_file,
    of_tail,
    static_traffic,
)
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.specs.sequence.group_seconds import busy_seconds, circulated_tokens, finish_seconds, imbalance
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.systems.sequence.best_fit import packed
from meshwright.systems.sequence.byte_scale.mechanism import (
    BALANCES,
    ByteScale,
    buckets_of,
    filling,
    least_offload,
    ranks_of,
    units_of,
)

SMALL = SequenceCosts(
    square_s=1e-3,
    token_s=1e-2,
    fixed_s=0.0,
    token_bytes=10,
    state_bytes=20,
    capacity_bytes=120,
    is_beside=True,
    ring_bytes=1,
    rates={8: 100.0},
)  # fmt: skip  a rank holds ten tokens
OFFLOADING = replace(SMALL, offload_bytes=8, offload_rate=1000.0)


def is_within_capacity(batch: GroupedBatch, known: SequenceCosts) -> bool:
    return all(
        known.held_bytes(batch.group_lengths(one), one.degree, one.offload)
        <= known.capacity_bytes * (1 + 1e-9)
        for one in batch.groups
    )


def test_a_sequence_of_three_ranks_beside_packed_short_ones() -> None:
    batch = ByteScale()((30, 4, 3, 3, 6), 4, SMALL)
    assert sorted(group.degree for group in batch.groups) == [1, 1, 3]
    long, *packs = batch.groups
    assert long.sequences == (0,) and long.ranks == (0, 1, 2)
    assert sorted(tuple(sorted(pack.sequences)) for pack in packs) == [(1, 4), (2, 3)]
    assert packs[0].ranks == (3,)  # the rank that is free


def test_short_ones_go_where_they_leave_the_least_room() -> None:
    lengths = (7, 6, 4, 3, 2)
    assert packed(lengths, range(5), 10) == [(0, 3), (1, 2), (4,)]
    assert packed(lengths, [], 10) == []


def test_what_is_hidden_on_the_way_to_the_host_frees_ranks_and_no_more_is_offloaded_than_they_need() -> None:
    assert ranks_of(100, SMALL) == (10, 0.0) == ranks_of(100, OFFLOADING, offloads=False)
    assert OFFLOADING.hidden_offload(100) == 1.0  # 0.8 s beside a forward of 3.67 s
    degree, share = ranks_of(100, OFFLOADING)
    assert degree == 2 and share == 1.0  # two of ten bytes of a token stay: 200 bytes
    assert ranks_of(90, OFFLOADING) == (2, pytest.approx((10 - 200 / 90) / 8))
    # of l layers two stay, and a rank has room for the l layers of C tokens: the same number as the bound of the docstring
    layers, capacity, length = 10, 10, 90
    assert least_offload(length, 2, OFFLOADING) == pytest.approx(
        layers / (layers - 2) * (1 - 2 * capacity / length)
    )


def test_an_offloaded_sequence_that_would_hold_up_all_others_gets_more_ranks() -> None:
    lengths = (100, *(5,) * 400)
    assert max(unit.degree for unit in units_of(lengths, 16, OFFLOADING, longest=1e9)) == 2
    some = max(units_of(lengths, 16, OFFLOADING, longest=1.0), key=lambda unit: unit.degree)
    assert some.degree == 5 and some.offload == pytest.approx(
        (10 - 5 * 100 / 100) / 8
    )  # 11 s over a mean of 2.56 s
    most = max(units_of(lengths, 16, OFFLOADING, longest=0.1), key=lambda unit: unit.degree)
    assert most.degree == 10 and most.offload == 0.0  # which hold it without
    even = replace(OFFLOADING, degrees=(1, 2, 8, 16))
    assert max(unit.degree for unit in units_of(lengths, 16, even, longest=1.0)) == 8


def test_where_most_of_a_step_is_offloaded_sequences_they_fill_all_ranks() -> None:
    lengths = (100,) * 12
    few = ByteScale(balance="none")(lengths, 3, OFFLOADING)
    assert {group.degree for group in few.groups} == {
        2
    }  # one beside the other has no room: the third rank is idle
    full = ByteScale(longest=1e9)(lengths, 3, OFFLOADING)
    assert {group.degree for group in full.groups} == {3}
    assert max(finish_seconds(full, OFFLOADING)) == pytest.approx(
        max(finish_seconds(few, OFFLOADING)) * 2 / 3
    )
    (unit,) = units_of((100,), 7, OFFLOADING, longest=1e9)
    assert filling(unit, (100,), 7, OFFLOADING) == unit  # three of two ranks, and of three there are only two


def test_levels_are_of_equal_seconds_and_fall() -> None:
    units = units_of(tuple(range(1, 60)), 16, SMALL)
    levels = buckets_of(units, 4)
    assert sum(map(len, levels)) == len(units)
    assert all(min(a).seconds >= 0 and a[-1].seconds >= b[0].seconds for a, b in pairwise(levels))
    seconds = [sum(unit.seconds * unit.degree for unit in level) for level in levels]
    assert max(seconds) < 1.5 * min(seconds)


def test_where_ranks_have_few_groups_packs_are_smaller_so_that_all_have_as_many() -> None:
    known = replace(SMALL, square_s=0.0, fixed_s=0.0)
    lengths = (2,) * 16  # 32 tokens of four ranks: full packs are 10, 10, 10 and 2
    batch = ByteScale()(lengths, 4, known)
    assert [sum(batch.group_lengths(group)) for group in batch.groups] == [8, 8, 8, 8]
    assert len(ByteScale(balance="none")(lengths, 4, known).groups) == 4
    assert packed((9, 4), (0, 1), 6) == [(0,), (1,)]  # longer than a pack: alone


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(PlanError, match="needs 5 ranks of 4"):
        ByteScale()((3, 45), 4, SMALL)
    with pytest.raises(PlanError, match="balance="):
        ByteScale(balance="best")


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=60),
    st.integers(8, 20),
    st.sampled_from(BALANCES),
    st.booleans(),
)
def test_everything_is_placed_once_and_nobody_holds_too_much(
    lengths: list[int], num_ranks: int, balance: str, offloads: bool
) -> None:
    known = OFFLOADING if offloads else SMALL
    batch = ByteScale(balance, offloads=offloads)(
        lengths, num_ranks, known
    )  # a GroupedBatch refuses what is not placed once
    assert is_within_capacity(batch, known)
    assert all(list(own) == sorted(own) for own in batch.of_rank)
    assert max(finish_seconds(batch, known)) >= max(busy_seconds(batch, known))


def test_who_waits_for_the_others_of_a_long_sequence_does_short_ones_meanwhile() -> None:
    flat = replace(SMALL, square_s=0.0, ring_bytes=0)  # a hundredth of a second for a token
    batch = ByteScale()((10, 19, 5, 2), 2, flat)
    assert [group.sequences for group in batch.groups] == [(0,), (2, 3), (1,)]
    assert finish_seconds(batch, flat) == pytest.approx([0.195, 0.195])


@pytest.mark.parametrize("name", [*FILES, *TAILS, *UNTUNED])
def test_a_twentieth_of_the_tokens_travels_and_ranks_are_even(name: str, shared_data: Path) -> None:
    """The issue's job on both files and on tails that no file has, three steps of each; twenty of them in benchmarks."""
    known, traffic, spread = costs(offloads=True), [], []
    for seed in range(3):
        lengths = of_file(shared_data, name, seed) if name in FILES else of_tail(name, seed)
        batch = ByteScale()(lengths, NUM_RANKS, known)
        assert is_within_capacity(batch, known)
        traffic.append(static_traffic(lengths) / circulated_tokens(batch))
        mean_s = sum(busy_seconds(batch, known)) / NUM_RANKS
        spread.append(max(imbalance(busy_seconds(batch, known)), max(finish_seconds(batch, known)) / mean_s))
    limits = {
        "heavy": (10, 1.05),
        "nearly all long": (4, 1.15),
        "lognormal": (7, 1.05),
        "chats": (3.5, 1.05),
    }
    least, most = limits.get(name, (20, 1.05))
    assert min(traffic) >= least
    assert max(spread) <= most
