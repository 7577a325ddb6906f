"""Reading a table of samples between its points: rates in log space, and how far from the nearest sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshwright.specs.cluster.profile import Sample
from meshwright.specs.plan.prediction import Basis

# Shepard's weights fall with this power of the distance; 2 keeps flat tables flat and follows a slope.
DISTANCE_POWER = 2.0
# Within this distance (natural logarithm) of a sample in every dimension, the sample itself is meant.
SAME_POINT = 1e-3
# A size up to this factor outside the sampled box still counts as inside: rates change slowly with size.
FAR = 2.0
BOX_MARGIN = math.log(FAR)
LATENCY_SHARE = 0.5  # of the smallest sample's time is taken to be latency, paid by anything smaller
LEAST_SLOPE = 0.5


class Estimate(NamedTuple):
    """Seconds, how well they are known, and their relative spread."""

    seconds: float
    basis: Basis
    spread: float


def by_shape(
    samples: Sequence[Sample],
    shape: Sequence[int],
    amount: Callable[[Sequence[int]], float],
    place: Callable[[Sequence[int]], Sequence[float]] = lambda shape: shape,
) -> Estimate:
    """Seconds of `shape` at the rate (amount of work / second) of the samples around it.

    The rate is the distance-weighted geometric mean of the samples' rates, distances taken in the logarithm of
    each of the sizes that `place` gives for a shape. `samples` must not be empty.
    """
    point = [math.log(max(size, 1)) for size in place(shape)]
    logs = [[math.log(max(size, 1)) for size in place(sample.shape)] for sample in samples]
    distances = [math.dist(point, other) for other in logs]
    nearest = min(range(len(samples)), key=distances.__getitem__)
    if distances[nearest] < SAME_POINT:
        same = amount(shape) / amount(samples[nearest].shape)  # 1 but for what `place` leaves out
        return Estimate(samples[nearest].seconds * same, "measured here", samples[nearest].spread)
    weights = [distance**-DISTANCE_POWER for distance in distances]
    rates = [math.log(amount(sample.shape) / sample.seconds) for sample in samples]
    total = sum(weights)
    rate = math.exp(sum(w * r for w, r in zip(weights, rates, strict=True)) / total)
    spread = sum(w * sample.spread for w, sample in zip(weights, samples, strict=True)) / total
    return Estimate(amount(shape) / rate, _basis(point, logs), spread)


def by_size(samples: Sequence[Sample], size: float, measure: Callable[[Sequence[int]], float]) -> Estimate:
    """Seconds at `size` from samples whose sizes are `measure(shape)`: linear between neighbours.

    Below the smallest size its time scales down to half at most (the rest is latency); above the largest the
    marginal rate of the last two goes on. `samples` must not be empty.
    """
    points = _rising(sorted((measure(sample.shape), sample.seconds) for sample in samples))
    spread = sum(sample.spread for sample in samples) / len(samples)
    if size <= points[0][0]:
        share = max(size / points[0][0], LATENCY_SHARE) if points[0][0] > 0 else 1.0
        return Estimate(points[0][1] * share, "interpolated", spread)
    if len(points) == 1:
        return Estimate(points[0][1] * size / points[0][0], "extrapolated", spread)
    high = next((i for i, point in enumerate(points) if point[0] >= size), len(points) - 1)
    (size_0, seconds_0), (size_1, seconds_1) = points[high - 1], points[high]
    slope = max(0.0, (seconds_1 - seconds_0) / (size_1 - size_0))
    if size <= size_1:
        basis: Basis = "measured here" if size == size_1 else "interpolated"
        return Estimate(seconds_0 + slope * (size - size_0), basis, spread)
    # Noise can flatten the last step; beyond it at least this share of the average rate is paid.
    slope = max(slope, LEAST_SLOPE * seconds_1 / size_1)
    basis = "extrapolated" if size > FAR * size_1 else "interpolated"
    return Estimate(seconds_1 + slope * (size - size_1), basis, spread)


def _rising(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without disturbances: nothing takes longer than what is larger, for noise only adds time."""
    least = float("inf")
    found = []
    for size, seconds in reversed(points):
        least = min(least, seconds)
        found.append((size, least))
    return found[::-1]


def _basis(point: Sequence[float], logs: Sequence[Sequence[float]]) -> Basis:
    """Interpolated inside the box of samples (with its margin), extrapolated outside."""
    for axis, value in enumerate(point):
        low, high = min(row[axis] for row in logs), max(row[axis] for row in logs)
        if not low - BOX_MARGIN <= value <= high + BOX_MARGIN:
            return "extrapolated"
    return "interpolated"
