"""The order of samples: a permutation in every epoch, the same however it is asked for, and no visible pattern."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.executor.data.sample_order import SampleOrder, permuted
from meshwright.specs.error import ExecutionError


@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 5))
def test_every_sequence_once_in_every_epoch(length: int, seed: int, epoch: int) -> None:
    order = SampleOrder(length, seed)
    found = order.sequences(np.arange(epoch * length, (epoch + 1) * length))
    assert sorted(found.tolist()) == list(range(length))


@given(st.integers(1, 500), st.integers(0, 9), st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_a_sample_does_not_know_who_else_is_asked_for(length: int, seed: int, samples: list[int]) -> None:
    order = SampleOrder(length, seed)
    together = order.sequences(np.array(samples))
    assert together.tolist() == [int(order.sequences(np.array([sample]))[0]) for sample in samples]


def test_seeds_and_epochs_differ() -> None:
    samples = np.arange(1000)
    first, second = SampleOrder(1000, 0), SampleOrder(1000, 1)
    kept = [
        (first.sequences(samples) == second.sequences(samples)).mean(),
        (first.sequences(samples) == first.sequences(samples + 1000)).mean(),
        (first.sequences(samples) == samples).mean(),
    ]
    assert max(kept) < 0.01  # one in a thousand by chance


def test_it_is_spread_like_random_numbers() -> None:
    """Of random permutations the correlations of neighbours, and with the place, have standard deviation 1 / sqrt(n)."""
    length, worst = 10_000, 0.0
    for key in range(20):
        found = permuted(np.arange(length), length, str(key)).astype(float)
        neighbours = np.corrcoef(found[:-1], found[1:])[0, 1]
        place = np.corrcoef(found, np.arange(length))[0, 1]
        worst = max(worst, abs(neighbours), abs(place))
    assert worst < 4.5 / length**0.5


def test_three_sequences_come_in_all_six_orders() -> None:
    orders = [tuple(permuted(np.arange(3), 3, str(key))) for key in range(600)]
    counts = {order: orders.count(order) for order in set(orders)}
    assert len(counts) == 6
    assert min(counts.values()) > 60  # 100 expected, standard deviation 9


def test_more_than_fits_into_memory() -> None:
    length = 3 * 2**40 + 17
    found = SampleOrder(length, 5).sequences(np.array([0, 1, length - 1, length, 10 * length + 3]))
    assert len(set(found.tolist())) == 5
    assert ((0 <= found) & (found < length)).all()


def test_nothing_has_no_order() -> None:
    with pytest.raises(ExecutionError, match="0 sequences"):
        SampleOrder(0, 0)
