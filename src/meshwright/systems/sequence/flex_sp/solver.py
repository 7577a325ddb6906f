"""A mixed-integer program for the groups of one micro-batch, on buckets of lengths; it counts where it beats the greedy.

HiGHS has no warm start in SciPy, so the greedy's seconds are a bound on the objective: what is found is better, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.sequence.degree_price import DegreePrice
from meshwright.systems.sequence.flex_sp.bucket import Bucket, buckets_of
from meshwright.systems.sequence.flex_sp.layout import Load, Packed, rebalanced


def solved(
    lengths: Sequence[int], numbers: Sequence[int], num_ranks: int, prices: Sequence[DegreePrice], greedy: Packed,
    *, num_buckets: int, limit_s: float,
) -> Packed:  # fmt: skip
    """The better of the greedy groups and of what the solver finds in `limit_s` seconds; `numbers` the longest first."""
    buckets = buckets_of([lengths[number] for number in numbers], num_buckets)
    slots = [price for price in prices for _ in range(num_ranks // price.degree)]
    counts = _solution(buckets, slots, num_ranks, greedy.seconds, limit_s)
    if counts is None:
        return greedy
    loads = [Load(price) for price in slots]
    for bucket, row in zip(buckets, counts, strict=True):
        places = iter(bucket.places)
        for load, count in zip(loads, row.tolist(), strict=True):
            for _ in range(count):
                number = numbers[next(places)]
                load.add(number, lengths[number])
    filled = tuple(load for load in loads if load.members)
    found = rebalanced(Packed(filled, max(load.seconds for load in filled)), lengths)
    return min(greedy, found, key=lambda packed: packed.seconds)


def _solution(
    buckets: Sequence[Bucket], slots: Sequence[DegreePrice], num_ranks: int, most_s: float, limit_s: float
) -> NDArray[np.int64] | None:
    """How many sequences of each bucket are in each slot; None where nothing better than `most_s` was found in time.

    Unknowns: these counts, whether a slot is used, and the seconds of the last group.
    """
    from scipy.optimize import (
        Bounds,
        LinearConstraint,
        milp,
    )  # a quarter of a second that the greedy need not wait
    from scipy.sparse import lil_array

    size = np.array([bucket.length for bucket in buckets], dtype=float)
    number = np.array([len(bucket.places) for bucket in buckets])
    num_counts = len(buckets) * len(slots)
    rows: list[tuple[NDArray[np.int64], NDArray[np.float64], float, float]] = []
    for slot, price in enumerate(slots):
        mine, used, end = (
            np.arange(len(buckets)) * len(slots) + slot,
            num_counts + slot,
            num_counts + len(slots),
        )
        columns = np.append(mine, [used, end])
        for terms, once in _seconds_terms(price, size):
            rows.append((columns, np.append(terms, [once, -1.0]), -np.inf, 0.0))
        rows.append((columns[:-1], np.append(size, -price.capacity), -np.inf, 0.0))
        if (
            slot and slots[slot - 1].degree == price.degree
        ):  # slots of a degree are alike: the first ones are used
            rows.append((np.array([used - 1, used]), np.array([1.0, -1.0]), 0.0, np.inf))
    for bucket, count in enumerate(number):
        columns = bucket * len(slots) + np.arange(len(slots))
        rows.append((columns, np.ones(len(slots)), float(count), float(count)))
    degrees = np.array([price.degree for price in slots], dtype=float)
    rows.append((num_counts + np.arange(len(slots)), degrees, 0.0, float(num_ranks)))
    matrix = lil_array((len(rows), num_counts + len(slots) + 1))
    for row, (columns, values, _, _) in enumerate(rows):
        matrix[row, columns] = values
    upper = np.concatenate([np.repeat(number, len(slots)), np.ones(len(slots)), [most_s]])
    objective = np.zeros(len(upper))
    objective[-1] = 1.0
    found = milp(
        objective, integrality=np.append(np.ones(len(upper) - 1), 0.0), bounds=Bounds(np.zeros(len(upper)), upper),
        constraints=LinearConstraint(matrix.tocsr(), [row[2] for row in rows], [row[3] for row in rows]),
        options={"time_limit": limit_s},
    )  # fmt: skip
    if found.x is None:
        return None
    counts: NDArray[np.int64] = (
        np.rint(found.x[:num_counts]).astype(np.int64).reshape(len(buckets), len(slots))
    )
    return counts


def _seconds_terms(price: DegreePrice, size: NDArray[np.float64]) -> list[tuple[NDArray[np.float64], float]]:
    """What a sequence of each bucket, and a group at all, add to its seconds; of exchanges beside attention both sums, the
    larger of which counts."""
    attention, exchange, rest = price.square_s * size**2, price.sent_s * size, price.token_s * size
    least = [(np.zeros(len(size)), price.least_s)] if price.least_s else []
    if price.is_beside:
        return [(rest + attention, price.start_s), (rest + exchange, price.start_s + price.first_s), *least]
    return [(rest + attention + exchange, price.start_s + price.first_s), *least]
