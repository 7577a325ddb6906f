"""Attention by whole rows of scores, filled block by block as keys come around a ring, and then values (Li et al. 2021, arXiv
2105.13120).

Shapes: P ranks, B samples, s tokens of a rank, S = P s, H query heads, K key-value heads, D numbers of a query's head, V of a
value's. Columns of scores stand in the order of the ranks, whatever the layout of the tokens.

    for step in range(P):
        own.score(query, keys, scores, rank)            # keys of `rank`, which then go on to the next one
    probabilities = softmax(scores)
    for step in range(P):
        own.weigh(probabilities, values, weighted, rank)

Every pair is computed, seen or not. Nothing is summed over blocks but outputs and gradients of queries, in float32 where
tensors are 16-bit; gradients of keys and values are one product for each rank, which a reduce-scatter sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.tile_kernel import by_head, grouped, wide_dtype
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.sequence.sequence_part import RingPart


def softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities [B, H, s, S] of scores."""
    return torch.softmax(scores, -1).to(dtype)


def softmax_backward(probabilities: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of scores from that of probabilities, [B, H, s, S]."""
    gradient = gradient * probabilities
    return gradient.sub_(probabilities * gradient.sum(-1, keepdim=True))


@dataclass(frozen=True)
class FullScores:
    """Of the queries of `part`; ``mask``: documents and window of the whole sequence."""

    part: RingPart
    mask: DocumentMask | None = None

    def empty_scores(self, query: Tensor) -> Tensor:
        """Room for the scores [B, H, s, S] of queries [B, s, H, D], in the wide dtype."""
        batch, num_rows, num_heads, _ = query.shape
        shape = (batch, num_heads, num_rows, self.part.sequence_length)
        return query.new_empty(shape, dtype=wide_dtype(query.dtype))

    @torch.no_grad()
    def score(self, query: Tensor, keys: Tensor, scores: Tensor, rank: int) -> None:
        """Fill in the scores of the keys [B, s, K, D] of a rank."""
        wide = scores.dtype
        found = by_head(query.transpose(1, 2).to(wide), keys.permute(0, 2, 3, 1).to(wide))
        scores[..., self._columns(rank)] = found.masked_fill_(~self._visible(rank, query.device), -math.inf)

    @torch.no_grad()
    def weigh(self, probabilities: Tensor, values: Tensor, weighted: Tensor, rank: int) -> None:
        """Add what the values [B, s, K, V] of a rank give to [B, s, H, V]."""
        own, wide = probabilities[..., self._columns(rank)], weighted.dtype
        weighted += by_head(own.to(wide), values.transpose(1, 2).to(wide)).transpose(1, 2)

    @torch.no_grad()
    def weigh_backward(
        self, probabilities: Tensor, gradient: Tensor, values: Tensor, to_probabilities: Tensor, rank: int
    ) -> Tensor:
        """Fill in the gradient of probabilities of a rank's keys; that of its values, this rank's term, [B, s, K, V].
        ``gradient``: of the output [B, s, H, V]."""
        own, wide = self._columns(rank), to_probabilities.dtype
        given = gradient.transpose(1, 2).to(wide)
        to_probabilities[..., own] = by_head(given, values.permute(0, 2, 3, 1).to(wide))
        return self._term(probabilities[..., own].to(wide), given, values)

    @torch.no_grad()
    def score_backward(
        self, query: Tensor, to_scores: Tensor, keys: Tensor, to_query: Tensor, rank: int
    ) -> Tensor:
        """Add to the gradient of queries; that of a rank's keys, this rank's term, [B, s, K, D]."""
        own, wide = to_scores[..., self._columns(rank)], to_query.dtype
        own = own.to(wide)
        to_query += by_head(own, keys.transpose(1, 2).to(wide)).transpose(1, 2)
        return self._term(own, query.transpose(1, 2).to(wide), keys)

    @staticmethod
    def _term(pairs: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
        """[B, H, s, m] and [B, H, s, W] -> [B, m, K, W], over the heads of each key-value head."""
        num = keys.shape[2]
        return (grouped(pairs, num).transpose(2, 3) @ grouped(rows, num)).transpose(1, 2).to(keys.dtype)

    def _columns(self, rank: int) -> slice:
        return slice(rank * self.part.num_tokens, (rank + 1) * self.part.num_tokens)

    def _visible(self, rank: int, device: torch.device) -> Tensor:
        """Which keys of a rank every query sees, [B or 1, 1, s, m]."""
        queries, keys = (token_places(part, device) for part in (self.part, self.part.of_rank(rank)))
        visible = (keys <= queries[:, None])[None]
        if self.mask is not None:
            visible = visible & (keys >= self.mask.starts_BS[:, queries, None])
        return visible[:, None]
