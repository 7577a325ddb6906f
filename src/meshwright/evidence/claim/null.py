"""Null models: what the simplest thing that knows nothing of a paper says, and whether a prediction is closer than it."""

from __future__ import annotations

import math
from typing import NamedTuple

NULLS = (
    "no effect",  # the method changes nothing: a ratio of 1, a gain of 0
    "nearest published row",  # the value of the published case most like this one, which is left out itself
    "mean of inputs",  # of what the prediction is made from
    "bytes over bandwidth",  # or operations over the peak of the data sheet: no model of anything between
    "perfect scaling",  # twice the devices, twice the rate
)
CLOSER = 0.9  # a prediction counts as evidence where its error is at most this share of the null's


class NullValue(NamedTuple):
    """What a null model says of one case."""

    name: str
    value: float


def strongest(nulls: list[NullValue], paper_value: float) -> NullValue | None:
    """The one closest to the paper; None of none."""
    return min(nulls, key=lambda null: error(null.value, paper_value), default=None)


def is_closer(our_value: float, null_value: float, paper_value: float) -> bool:
    """Is our error at least a tenth less than the null's? Errors are |log(value / paper)|; where a value is not above zero
    there are no logarithms, and all three are compared by their differences."""
    values = (our_value, null_value, paper_value)
    if not all(math.isfinite(value) for value in values):
        return False
    if min(values) > 0:
        ours, null = error(our_value, paper_value), error(null_value, paper_value)
    else:
        ours, null = abs(our_value - paper_value), abs(null_value - paper_value)
    return ours < null and ours <= CLOSER * null


def error(value: float, paper_value: float) -> float:
    """|log(value / paper)|, or the relative difference where there is no logarithm."""
    if value > 0 and paper_value > 0:
        return abs(math.log(value / paper_value))
    return abs(value - paper_value) / (abs(paper_value) or 1.0)
