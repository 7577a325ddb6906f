"""Cuts into micro-batches and buckets: against every other cut of small lists."""

import itertools
import random

import pytest

from meshwright.systems.sequence.flex_sp.bucket import Cuts, bucketing_error, buckets_of


def falling(seed: int, count: int) -> list[int]:
    drawn = random.Random(seed)
    return sorted((drawn.randint(1, 60) for _ in range(count)), reverse=True)


def every_cut(size: int, count: int) -> list[list[range]]:
    found = []
    for ends in itertools.combinations(range(1, size), count - 1):
        places = (0, *ends, size)
        found.append([range(*pair) for pair in itertools.pairwise(places)])
    return found


@pytest.mark.parametrize("seed", range(8))
def test_no_other_cut_has_a_smaller_largest_micro_batch(seed: int) -> None:
    lengths = falling(seed, 9)
    cuts = Cuts(lengths)
    for count in (4, 1, 2, 3, 9):  # in any order: what was worked out for more serves fewer
        found = cuts.into(count)
        assert [place for part in found for place in part] == list(range(9)) and all(found)
        largest = max(sum(lengths[place] for place in part) for part in found)
        others = every_cut(9, count)
        assert largest == min(max(sum(lengths[p] for p in part) for part in cut) for cut in others)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_buckets_are_charged_less(seed: int) -> None:
    lengths = falling(seed, 10)
    for count in (1, 2, 3, 10, 16):
        buckets = buckets_of(lengths, count)
        assert [place for bucket in buckets for place in bucket.places] == list(range(10))
        assert all(bucket.length == lengths[bucket.places.start] for bucket in buckets)
        charged = sum(bucket.length * len(bucket.places) for bucket in buckets)
        others = every_cut(10, min(count, 10))
        assert charged == min(sum(lengths[part.start] * len(part) for part in cut) for cut in others)
        assert bucketing_error(lengths, buckets) == pytest.approx(charged / sum(lengths) - 1)


def test_equal_lengths_are_one_bucket_without_error() -> None:
    assert [len(bucket.places) for bucket in buckets_of([7] * 40, 16)] == [40]
    assert bucketing_error([7] * 40, buckets_of([7] * 40, 16)) == 0
