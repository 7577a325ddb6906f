"""LengthDistribution: how many tokens the documents of a data set have, by powers of two, or kept as quantiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.specs.bound.bound import MOST_TOKENS
from meshwright.specs.error import SpecError

Integers = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NUM_KEPT = 64  # lengths that a plan's file has at most
SHARE_DIGITS = 9  # of a share in a plan's file


class LengthBin(NamedTuple):
    """Sequences of `least` to before `end` tokens: how many, and what share of all sequences and of all tokens they are."""

    least: int
    end: int
    number: int
    share: float
    token_share: float


class KeptLengths(NamedTuple):
    """Pairs (tokens, share) that stand for a distribution, and by how much, relatively, they miss the mean of its lengths and
    the mean of their squares, on which linear layers and attention depend."""

    pairs: tuple[tuple[int, float], ...]
    mean_error: float
    square_error: float


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """`counts[i]` sequences of `lengths[i]` tokens, rising. ``name``: of what they were counted in."""

    lengths: Integers
    counts: Integers
    name: str = "lengths"

    @classmethod
    def of(cls, lengths: Iterable[int] | Integers, name: str = "lengths") -> LengthDistribution:
        """Of single sequences. Raises SpecError where there are none, or one has no token or too many."""
        found = np.asarray(lengths if isinstance(lengths, np.ndarray) else list(lengths), np.int64).ravel()
        if not len(found) or int(found.min()) < 1:
            problem = f"a sequence of {int(found.min())} tokens" if len(found) else "no sequences"
            raise SpecError(f"{name} has {problem}", allowed="one sequence or more, of a token or more")
        if int(found.max()) > MOST_TOKENS:
            raise SpecError(
                f"{name} has a sequence of {int(found.max())} tokens", allowed=f"up to {MOST_TOKENS} tokens"
            )
        return cls(*np.unique(found, return_counts=True), name)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[int, float]], name: str = "lengths") -> LengthDistribution:
        """Of lengths with shares of sequences, as `kept` gives them."""
        lengths, shares = (np.array(column) for column in zip(*sorted(pairs), strict=True))
        counts = np.maximum(1, np.rint(shares * 10**SHARE_DIGITS)).astype(np.int64)
        return cls(lengths.astype(np.int64), counts, name)

    def drawn(self, number: int, seed: int) -> tuple[int, ...]:
        """So many sequences, drawn by their shares; the same for the same seed."""
        shares = self.counts / self.counts.sum()
        return tuple(np.random.default_rng(seed).choice(self.lengths, number, p=shares).tolist())

    @property
    def num_sequences(self) -> int:
        """All of them."""
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        """Of all sequences."""
        return int((self.lengths * self.counts).sum())

    @property
    def mean(self) -> float:
        """Tokens of a sequence."""
        return self.num_tokens / self.num_sequences

    @property
    def mean_square(self) -> float:
        """Mean of the squares of lengths."""
        return float(self._squares.sum() / self.num_sequences)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths[-1])

    def quantile(self, share: float) -> int:
        """The least length that so large a share of the sequences does not exceed."""
        place = int(np.searchsorted(np.cumsum(self.counts), share * self.num_sequences, side="left"))
        return int(self.lengths[min(place, len(self.lengths) - 1)])

    def cut(self, context_length: int) -> LengthDistribution:
        """The same with every document cut each `context_length` tokens: what is left of one is a sequence of its own, so
        that no token is lost. Raises SpecError."""
        if context_length < 1:
            raise SpecError(f"a context length of {context_length}", allowed="1 token or more")
        whole, rest = np.divmod(self.lengths, context_length)
        lengths = np.append(rest[rest > 0], context_length)
        counts = np.append(self.counts[rest > 0], int((whole * self.counts).sum()))
        both, place = np.unique(lengths, return_inverse=True)
        summed = np.zeros(len(both), np.int64)
        np.add.at(summed, place, counts)
        return LengthDistribution(both[summed > 0], summed[summed > 0], self.name)

    @property
    def histogram(self) -> tuple[LengthBin, ...]:
        """Bins of the powers of two, from that of the shortest to that of the longest sequence."""
        power = np.floor(np.log2(self.lengths)).astype(np.int64)
        counts, tokens = self.counts, self.lengths * self.counts
        return tuple(
            LengthBin(
                1 << one, 2 << one, int(counts[own].sum()),
                float(counts[own].sum() / counts.sum()), float(tokens[own].sum() / tokens.sum()),
            )
            for one in range(int(power[0]), int(power[-1]) + 1) for own in (power == one,)
        )  # fmt: skip

    def kept(self, most: int = NUM_KEPT) -> KeptLengths:
        """At most so many pairs of a length and its share that stand for all of them: runs of lengths, each with equal parts
        of sequences, tokens and squares together, by their mean. So a long tail of few sequences keeps its own pairs."""
        each = np.stack([self.counts.astype(float), self._tokens, self._squares])
        weight = (each / each.sum(axis=1, keepdims=True)).sum(axis=0)
        if len(self.lengths) <= most:
            run = np.arange(len(self.lengths))
        else:
            middle = (np.cumsum(weight) - weight / 2) / weight.sum()
            run = np.minimum((middle * most).astype(np.int64), most - 1)
        _, begins = np.unique(run, return_index=True)
        counts = np.add.reduceat(self.counts, begins)
        lengths = np.rint(np.add.reduceat(self.lengths * self.counts, begins) / counts).astype(np.int64)
        shares = np.round(counts / counts.sum(), SHARE_DIGITS)
        shares[int(np.argmax(shares))] += 1.0 - shares.sum()
        return KeptLengths(
            tuple(
                (int(length), float(f"{share:.12g}")) for length, share in zip(lengths, shares, strict=True)
            ),
            float((lengths * shares).sum() / self.mean - 1),
            float((lengths.astype(float) ** 2 * shares).sum() / self.mean_square - 1),
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is told of it, by name."""
        return {
            "num_sequences": self.num_sequences, "num_tokens": self.num_tokens, "mean_length": self.mean,
            "median_length": self.quantile(0.5), "p99_length": self.quantile(0.99), "longest": self.longest,
        }  # fmt: skip

    @cached_property
    def _tokens(self) -> FloatArray:
        return self.lengths.astype(float) * self.counts

    @cached_property
    def _squares(self) -> FloatArray:
        return self.lengths.astype(float) ** 2 * self.counts
