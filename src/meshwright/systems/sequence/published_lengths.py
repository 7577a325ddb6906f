"""Lengths with published bins of three data sets, drawn: in each their number falls as a power that gives its mean.

Two have the tails of ByteScale (Ge et al. 2025, arXiv 2502.21231), one the bins of FlexSP's Wikipedia (Wang et al. 2025,
arXiv 2412.01523); systems of the family draw steps of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

KIBI = 1024


class TailBin(NamedTuple):
    """Sequences of `low` to `high` tokens: their share of all tokens, and their mean length."""

    low: int
    high: int
    tokens: float
    mean: float


def power_mean(low: int, high: int, exponent: float) -> float:
    """Mean of lengths from low to high whose number falls as x^-exponent."""
    return low * _area(high / low, 1 - exponent) / _area(high / low, -exponent)


def _area(end: float, power: float) -> float:
    """The integral of x^power from 1 to the end."""
    if abs(power + 1) < 1e-9:
        return math.log(end)
    return math.expm1((power + 1) * math.log(end)) / (power + 1)


@cache
def exponent_of(low: int, high: int, mean: float) -> float:
    """The exponent with which lengths from low to high have this mean."""
    least, most = -20.0, 20.0
    for _ in range(60):
        middle = (least + most) / 2
        least, most = (middle, most) if power_mean(low, high, middle) > mean else (least, middle)
    return middle


# Of Byted's sequences 80 % have up to 4K tokens, 1 % from 128K on, with 44.3 % of tokens, and 0.05 % from 2M on, with 12.1 %;
# 37 % of tokens are in sequences above 256K. If the longest are cut at 2M, a sequence has 0.0005 * 2M / 0.121 tokens on
# average, and that many tokens of 0.95 % of sequences leave those between 256K and 2M a mean of 358K. Ours: that numbers fall
# as x^-1 up to 4K (from 256), and as x^-2 between 128K and 256K.
BYTED_MEAN = 0.0005 * 2048 * KIBI / 0.121
SHORT_MEAN, LONG_MEAN = power_mean(256, 4 * KIBI, 1.0), power_mean(128 * KIBI, 256 * KIBI, 2.0)
SHORT_TOKENS = 0.80 * SHORT_MEAN / BYTED_MEAN
LONGER_MEAN = 0.249 * BYTED_MEAN / (0.0095 - 0.073 * BYTED_MEAN / LONG_MEAN)
MIDDLE_TOKENS = 1 - 0.443 - SHORT_TOKENS
BYTED = (
    TailBin(256, 4 * KIBI, SHORT_TOKENS, SHORT_MEAN),
    TailBin(4 * KIBI, 128 * KIBI, MIDDLE_TOKENS, MIDDLE_TOKENS * BYTED_MEAN / 0.19),
    TailBin(128 * KIBI, 256 * KIBI, 0.073, LONG_MEAN),
    TailBin(256 * KIBI, 2048 * KIBI, 0.249, LONGER_MEAN),
    TailBin(2048 * KIBI, 2048 * KIBI, 0.121, 2048 * KIBI),
)
# Of GitHub's tokens 16.2 % are in sequences above 128K and 9.8 % above 256K: a power of log2(16.2 / 9.8), which is taken to
# go on to 2M, where what is longer is cut. Up to 128K they are distributed as Byted's.
TAIL = math.log2(0.162 / 0.098)
CUT = 0.098 * 8**-TAIL
BODY = (1 - 0.162) / (1 - 0.443)
GITHUB = (
    *(one._replace(tokens=one.tokens * BODY) for one in BYTED[:2]),
    TailBin(128 * KIBI, 256 * KIBI, 0.064, power_mean(128 * KIBI, 256 * KIBI, 2 + TAIL)),
    TailBin(256 * KIBI, 2048 * KIBI, 0.098 - CUT, power_mean(256 * KIBI, 2048 * KIBI, 2 + TAIL)),
    TailBin(2048 * KIBI, 2048 * KIBI, CUT, 2048 * KIBI),
)
# Of the million lengths of Wikipedia that FlexSP's authors publish: percent of sequences and of tokens by bins, whose ratio
# is the mean of a bin over that of all, 1,014; the longest has 1,823,777. From 156 on, so that the median is theirs, 347.
WIKIPEDIA = tuple(
    TailBin(low, high, tokens / 100, 1014 * tokens / sequences)
    for low, high, sequences, tokens in (
        (156, 4 * KIBI, 95.6, 57.0), (4 * KIBI, 8 * KIBI, 2.80, 15.5), (8 * KIBI, 16 * KIBI, 1.12, 12.3),
        (16 * KIBI, 32 * KIBI, 0.35, 7.6), (32 * KIBI, 64 * KIBI, 0.10, 4.5), (64 * KIBI, 128 * KIBI, 0.023, 2.0),
        (128 * KIBI, 1_823_777, 0.005, 1.1),
    )
)  # fmt: skip
DATA_SETS = {"Byted": BYTED, "GitHub": GITHUB}


def drawn_sequences(
    bins: Sequence[TailBin], num_sequences: int, context: int, rng: np.random.Generator
) -> list[int]:
    """Lengths of so many sequences, each cut at the context."""
    shares = np.array([one.tokens / one.mean for one in bins])
    numbers = np.searchsorted(np.cumsum(shares / shares.sum()), rng.random(num_sequences))
    places = rng.random(num_sequences)
    return [
        min(context, _length(bins[n], place))
        for n, place in zip(numbers.tolist(), places.tolist(), strict=True)
    ]


def drawn(bins: Sequence[TailBin], num_tokens: int, context: int, rng: np.random.Generator) -> list[int]:
    """Lengths of a step: sequences drawn, each cut at the context, until there are so many tokens (the last one is cut)."""
    shares = np.array([one.tokens / one.mean for one in bins])
    numbers = np.searchsorted(np.cumsum(shares / shares.sum()), rng.random(num_tokens // bins[0].low))
    places = rng.random(len(numbers))
    lengths: list[int] = []
    missing = num_tokens
    for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
        lengths.append(min(context, missing, _length(bins[number], place)))
        missing -= lengths[-1]
        if not missing:
            break
    return lengths


def _length(one: TailBin, place: float) -> int:
    """The length below which a share `place` of a bin's sequences lies."""
    if one.low == one.high:
        return one.low
    power, most = 1 - exponent_of(one.low, one.high, one.mean), math.log(one.high / one.low)
    if abs(power) < 1e-9:
        return int(one.low * math.exp(place * most))
    return int(one.low * math.exp(math.log1p(place * math.expm1(power * most)) / power))
