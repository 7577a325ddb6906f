"""Rows of packed documents, drawn: what the sequences of a step hold where documents have a distribution of lengths.

Documents stand one behind the other and are cut where a row ends, as a training packs them; of a document that is cut every
part is one of its own. Rows then come in a drawn order, as samples do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.specs.sequence.length_distribution import Integers

Lengths = tuple[tuple[int, float], ...]  # of documents: tokens, share

SEED = 0
TYPICAL_ROWS, TYPICAL_DOCUMENTS = 1024, 200_000  # of which the mean is taken, at most


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Piece i of a document has `lengths[i]` tokens and stands in row `rows[i]`, of `num_rows`."""

    num_rows: int
    rows: Integers
    lengths: Integers


def drawn_rows(pairs: Lengths, row_tokens: int, num_rows: int, seed: int = SEED) -> DrawnRows:
    """So many rows of documents whose lengths have these shares; the same for the same seed."""
    import numpy as np  # only here: what knows of workloads does without, until one has lengths

    random, num_tokens = np.random.default_rng(seed), num_rows * row_tokens
    lengths, shares = (np.array(column) for column in zip(*pairs, strict=True))
    shares, drawn = shares / shares.sum(), np.zeros(0, np.int64)
    mean = float((lengths * shares).sum())
    while (missing := num_tokens - int(drawn.sum())) > 0:
        drawn = np.append(drawn, random.choice(lengths, 1 + int(missing / mean), p=shares))
    ends = np.cumsum(drawn)
    edges = np.union1d(ends[ends < num_tokens], np.arange(1, num_rows + 1) * row_tokens)
    pieces = np.diff(edges, prepend=0).astype(np.int64)
    return DrawnRows(num_rows, random.permutation(num_rows)[(edges - 1) // row_tokens], pieces)


@lru_cache(maxsize=64)
def attended_length(pairs: Lengths, row_tokens: int) -> float:
    """Tokens of the document, cut where its row ends, in which a token is in the mean: the mean of squares over the mean."""
    if len({min(length, row_tokens) for length, _ in pairs}) == 1:
        return float(min(pairs[0][0], row_tokens))
    mean = sum(length * share for length, share in pairs)
    found = drawn_rows(pairs, row_tokens, min(TYPICAL_ROWS, 1 + int(TYPICAL_DOCUMENTS * mean / row_tokens)))
    lengths = found.lengths.astype(float)
    return float((lengths**2).sum() / lengths.sum())
