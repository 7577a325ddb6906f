"""A closed lower bound of a step's seconds, which no grouping falls below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.sequence.degree_price import DegreePrice
from meshwright.specs.sequence.sequence_costs import SequenceCosts

Seconds = NDArray[np.float64]
NEAR = 1e-4  # relative: how near the bound is computed, from below
ROUNDING = 1e-9  # relative, of tokens that fill a device
NUM_WEIGHTS = 11  # of attention against exchanges that run beside it
MOST_GROUPS = 64  # of a rank, up to which it is asked what more of them would take


def lower_bound_s(
    lengths: Sequence[int],
    num_ranks: int,
    costs: SequenceCosts,
    *,
    degrees: Sequence[int] = (),
    lockstep: bool = False,
) -> float:
    """Seconds that a step of these sequences takes at least, whatever its groups.

    Every sequence is at that degree at which it takes the fewest seconds of ranks, of those that hold it and at which it ends
    in time by itself, and all ranks end together. What a group takes once is charged by the tokens that fit into it, or for
    every micro-batch. Where exchanges run beside attention a group takes the larger sum of both, which is no less than any
    weighted mean: the same weight for all, and the best.

    Args:
        degrees: that groups may have; empty: those of the costs, or all.
        lockstep: all ranks end each micro-batch together.
    """
    chosen = tuple(degrees) or costs.degrees or tuple(range(1, num_ranks + 1))
    prices = [DegreePrice.of(costs, degree) for degree in chosen if degree <= num_ranks]
    size = np.asarray(lengths, dtype=float)
    capacity = _most_tokens(costs)
    held = np.array([size <= price.degree * capacity * (1 + ROUNDING) for price in prices])
    alone = np.array([[price.seconds(s * s, s) for s in size.tolist()] for price in prices])
    alone[~held] = np.inf
    weights = np.linspace(0.0, 1.0, NUM_WEIGHTS).tolist() if costs.is_beside else [math.nan]
    taken = [_ranks_s(size, prices, weight, capacity) for weight in weights]

    def even_s(limit_s: float) -> float:
        cheapest = (np.where(alone <= limit_s, each, np.inf).min(axis=0) for each in taken)
        return max(_even_s(size, each, num_ranks, costs.fixed_s, capacity, lockstep) for each in cheapest)

    # a step that is longer lets sequences be at more degrees, so that it could be shorter: both meet at the bound
    low_s = float(alone.min(axis=0).max(initial=0.0))
    high_s = max(low_s, even_s(low_s))
    while high_s - low_s > NEAR * high_s:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if even_s(middle_s) <= middle_s else (middle_s, high_s)
    return low_s


def _most_tokens(costs: SequenceCosts) -> float:
    """Tokens that a rank holds at once, with all at the host that may wait there."""
    kept_bytes = costs.token_bytes - (costs.offload_bytes if costs.offload_rate else 0.0)
    return (costs.capacity_bytes - costs.state_bytes) / max(kept_bytes, ROUNDING * costs.token_bytes)


def _ranks_s(size: Seconds, prices: Sequence[DegreePrice], weight: float, capacity: float) -> Seconds:
    """Of every degree and sequence the seconds of ranks, without what its group takes in any case; `weight` of attention, the
    rest of exchanges beside it, or not a number where both count."""
    of_attention, of_exchange = (1.0, 1.0) if math.isnan(weight) else (weight, 1 - weight)
    found = np.empty((len(prices), len(size)))
    for row, price in zip(found, prices, strict=True):
        per_token = price.token_s + of_exchange * (price.sent_s + price.first_s / (price.degree * capacity))
        row[:] = price.degree * (of_attention * price.square_s * size**2 + per_token * size)
    return found


def _even_s(
    size: Seconds, cheapest: Seconds, num_ranks: int, fixed_s: float, capacity: float, lockstep: bool
) -> float:
    """Seconds of a step whose ranks end together.

    Whole groups cannot be shared out: of some ranks with at most k groups each, which hold k groups' tokens at most, and
    therefore at most what the sequences that take longest for their tokens take, the others have k + 1 at least, and do all
    the rest. The best number of such ranks is a bound, for every k.
    """
    total_s, least = float(cheapest.sum()), float(size.sum()) / (num_ranks * capacity)
    if lockstep:
        return total_s / num_ranks + math.ceil(least - 1e-9) * fixed_s
    even_s = total_s / num_ranks + least * fixed_s
    order = np.argsort(-cheapest / size)
    tokens, seconds = (np.concatenate([[0.0], np.cumsum(each[order])]) for each in (size, cheapest))
    few = np.arange(num_ranks)
    found = even_s
    for count in range(1, min(math.ceil(least - 1e-9), MOST_GROUPS)):
        done_s = np.interp(few * count * capacity, tokens, seconds)
        found = max(found, float(((count + 1) * fixed_s + (total_s - done_s) / (num_ranks - few)).min()))
    return found
