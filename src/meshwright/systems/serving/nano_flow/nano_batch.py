"""Nano-batches: how the tokens of a step are cut, and how a line of kernels repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.step_line import NETWORK, LinePlace, StepLine

TILE = 128  # tokens of which nano-batches are multiples: products are tiled by as many (paper, 4.1.1)
DECODES = "decodes"  # what serving calls attention of sequences that get one new token
Group = tuple[int, ...]  # the smallest nano-batches, by number, that a kernel takes at once


class Cut(NamedTuple):
    """How a batch is cut into nano-batches.

    Args:
        shares: of the batch's tokens, that each of the smallest nano-batches has; they sum to 1.
        joined: how many of these, one behind the other, are one nano-batch where no attention is near.
        is_even: has each the same share of decodes? Else the first ones have them all.
    """

    shares: tuple[float, ...]
    joined: tuple[int, ...]
    is_even: bool = True

    def batches(self, batch: BatchShape) -> tuple[BatchShape, ...]:
        """The smallest nano-batches of a batch, in whole tiles; nothing is lost, some may be empty."""
        tiles = [TILE * round(share * batch.num_tokens / TILE) for share in accumulate(self.shares)]
        ends = (*(min(each, batch.num_tokens) for each in tiles[:-1]), batch.num_tokens)
        return _between(batch, ends, is_even=self.is_even)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The joined nano-batches by the numbers of those that they are of."""
        return tuple(tuple(range(low, high)) for low, high in pairwise((0, *accumulate(self.joined))))

    @property
    def parts(self) -> tuple[Group, ...]:
        """The smallest ones, each alone."""
        return tuple((part,) for part in range(len(self.shares)))


@dataclass(frozen=True, eq=False)
class LinePeriod:
    """A line as a beginning, a run of places that repeats, and an end: decoders repeat their blocks.

    Attributes:
        line: of one stage.
        first, length, number: where the repetition begins, its places, how often they stand.
    """

    line: StepLine
    first: int
    length: int
    number: int

    @classmethod
    def of(cls, line: StepLine) -> LinePeriod:
        """With the period by which the longest part of the line repeats."""
        places = line.places
        best, first, period = 0, 0, len(places)
        for length in range(1, len(places) // 2 + 1):
            run = 0
            for place in range(len(places) - length):
                run = run + 1 if places[place] == places[place + length] else 0
                if run > best:
                    best, first, period = run, place + 1 - run, length
            if best >= len(places) - 2 * length:
                break
        return cls(line, first, period, best // period + 1)

    def laid(self, number: int) -> list[int]:
        """Places of the line if the repeating ones stood so often."""
        stop = self.first + self.length * self.number
        period = range(self.first, self.first + self.length)
        return [*range(self.first), *list(period) * number, *range(stop, len(self.line.places))]


def near_attention(places: Sequence[LinePlace]) -> list[bool]:
    """Of every place of a line, does it stand between the message (or the norm) before attention of decodes, and that?"""
    near = [False] * len(places)
    for place, kernel in enumerate(places):
        back = place if kernel.name == DECODES else -1
        while back >= 0 and places[back].resource != NETWORK:
            near[back] = True
            if places[back].name == "norm":
                break
            back -= 1
    return near


def total(parts: Sequence[BatchShape]) -> BatchShape:
    """Several nano-batches as one."""
    return BatchShape(*map(sum, zip(*parts, strict=True)))


def _between(batch: BatchShape, ends: Sequence[int], *, is_even: bool) -> tuple[BatchShape, ...]:
    """Cut at these tokens: decodes and chunks in the same proportion everywhere, or all decodes in front."""
    if is_even:
        decodes = [round(batch.num_decodes * end / batch.num_tokens) for end in ends]
    else:
        decodes = [min(end, batch.num_decodes) for end in ends]
    chunks = [end - own for end, own in zip(ends, decodes, strict=True)]
    return tuple(
        BatchShape(
            high - low,
            _share(batch.chunk_pairs, low, high, batch.chunk_tokens),
            _share(batch.num_chunks, low, high, batch.chunk_tokens),
            to - of,
            _share(batch.num_context, of, to, batch.num_decodes),
        )
        for (of, to), (low, high) in zip(pairwise((0, *decodes)), pairwise((0, *chunks)), strict=True)
    )


def _share(number: int, low: int, high: int, of: int) -> int:
    """What a range of so many has of a number, such that ranges that meet sum to the whole."""
    return round(number * high / of) - round(number * low / of) if of else 0
