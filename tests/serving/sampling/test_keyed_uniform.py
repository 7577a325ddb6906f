"""Keyed numbers are uniform, belong to their key, and do not follow each other."""

from __future__ import annotations

import numpy as np
from scipy.stats import kstest, pearsonr

from meshwright.serving.sampling.keyed_uniform import keyed_uniforms, stream_key

LEAST_P_VALUE = 1e-4
NUMBER = 20_000


def of_positions(seed: int, output: int = 0) -> np.ndarray:
    keys = np.full(NUMBER, stream_key(seed, output), np.uint64)
    return keyed_uniforms(keys, np.arange(NUMBER, dtype=np.uint64))


def of_seeds(position: int) -> np.ndarray:
    keys = np.array([stream_key(seed, 0) for seed in range(NUMBER)], np.uint64)
    return keyed_uniforms(keys, np.full(NUMBER, position, np.uint64))


def test_numbers_are_those_of_the_published_generator() -> None:
    """SplitMix64 from state 1234567, as in the reference program's first three numbers."""
    found = keyed_uniforms(np.full(3, 1234567, np.uint64), np.arange(3, dtype=np.uint64))
    published = np.array([6457827717110365317, 3203168211198807973, 9817491932198370423], np.uint64)
    np.testing.assert_array_equal(found, (published >> np.uint64(11)) * 2.0**-53)


def test_they_are_uniform_along_positions_and_seeds() -> None:
    for numbers in (of_positions(0), of_positions(1, 5), of_seeds(0), of_seeds(77)):
        assert kstest(numbers, "uniform").pvalue > LEAST_P_VALUE
        assert 0.0 <= numbers.min() and numbers.max() < 1.0


def test_neighbours_know_nothing_of_each_other() -> None:
    one = of_positions(0)
    for other in (of_positions(1), of_positions(0, 1), np.roll(one, 1)):
        assert pearsonr(one, other).pvalue > LEAST_P_VALUE
    assert pearsonr(of_seeds(0), of_seeds(1)).pvalue > LEAST_P_VALUE


def test_a_key_is_one_of_seed_and_output() -> None:
    pairs = [(seed, output) for seed in (-1, 0, 1, 11, 2**70) for output in (0, 1, 11)]
    assert len({stream_key(*pair) for pair in pairs}) == len(pairs)
