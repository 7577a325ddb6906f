"""Ulysses: from some tokens of all heads to all tokens of some heads and back, around attention (Jacobs et al. 2023, arXiv
2309.14509). What an all-to-all of equal parts takes and gives; nothing here communicates.

Shapes: P ranks of a group, B samples, S tokens that they have together, s = S / P of a rank, D numbers of a head, H query and
K key-value heads, of which a rank gets h = H / P and k = K / P; W any width.

    parts = exchange.by_rank(qkv)                       # [P, B, s, (h + 2k) D]: all-to-all along the first dimension
    attended = causal_attention(sequence_of(parts, group), exchange.local, turn)                        # [B, S, h D]
    parts = by_token(attended, group)                   # [P, B, s, h D]: all-to-all
    output = exchange.heads_of(parts)                   # [B, s, H D]

All are differentiable, and the transpose of an all-to-all is one. Fewer key-value heads than ranks are repeated, each as
often as ranks share its queries, so that every rank has one; the gradient of a head is then the sum over its copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.sequence.context_parallel import repeats_of_key
from meshwright.specs.sequence.sequence_part import SequencePart


@dataclass(frozen=True)
class HeadExchange:
    """Of heads as `layout` has them (of a tensor-parallel device its own), over `degree` ranks.

    Raises PlanError where the ranks divide no query heads, or neither they nor the key-value heads divide the other.
    """

    layout: HeadLayout
    degree: int

    def __post_init__(self) -> None:
        repeats_of_key(self._num_heads, self.layout.num_kv_heads, self.degree)

    @property
    def local(self) -> HeadLayout:
        """The heads of one rank, with its copies of key-value heads."""
        num_kv_heads = self.layout.num_kv_heads * self._repeats // self.degree
        return self.layout._replace(
            num_kv_heads=num_kv_heads, group_size=self._num_heads // self.degree // num_kv_heads
        )

    def by_rank(self, qkv: Tensor) -> Tensor:
        """The fused projection [B, s, (H + 2K) D] -> for every rank that of its heads: [P, B, s, (h + 2k) D]."""
        sizes = [self.layout.query_size, self.layout.key_size, self.layout.key_size]
        query, key, value = (
            torch.unflatten(x, -1, (-1, self.layout.head_dim)) for x in torch.split(qkv, sizes, dim=-1)
        )
        if self._repeats > 1:
            key, value = (x.repeat_interleave(self._repeats, -2) for x in (key, value))
        parts = [
            torch.cat(own, dim=-2).flatten(-2)
            for own in zip(*(x.chunk(self.degree, -2) for x in (query, key, value)), strict=True)
        ]
        return torch.stack(parts)

    def heads_of(self, parts: Tensor) -> Tensor:
        """What came back, every rank's heads [P, B, s, h D], in the order of the heads: [B, s, H D]."""
        return parts.permute(1, 2, 0, 3).flatten(2)

    @property
    def _num_heads(self) -> int:
        return self.layout.num_kv_heads * self.layout.group_size

    @property
    def _repeats(self) -> int:
        return repeats_of_key(self._num_heads, self.layout.num_kv_heads, self.degree)


@lru_cache(maxsize=64)
def _rising(group: tuple[SequencePart, ...], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Where the tokens of ranks one behind the other stand in the order of the sequence, and the way back; None: as they
    are."""
    places = torch.cat([token_places(part, device) for part in group])
    order = torch.argsort(places)
    return None if bool((places[1:] > places[:-1]).all()) else (order, torch.argsort(order))


def sequence_of(parts: Tensor, group: tuple[SequencePart, ...]) -> Tensor:
    """What came from the ranks of a group, each with its tokens [P, B, s, W], in the order of the sequence: [B, S, W]."""
    x_BSW, orders = parts.transpose(0, 1).flatten(1, 2), _rising(group, parts.device)
    return x_BSW if orders is None else x_BSW.index_select(1, orders[0])


def by_equal_heads(heads_BsW: Tensor, degree: int) -> Tensor:
    """What every head has side by side, [B, s, H w] -> for every rank its heads: [P, B, s, h w]."""
    return torch.stack(heads_BsW.chunk(degree, -1))


def by_token(x_BSW: Tensor, group: tuple[SequencePart, ...]) -> Tensor:
    """What a group has together, in the order of the sequence [B, S, W] -> for every rank its tokens: [P, B, s, W]."""
    orders = _rising(group, x_BSW.device)
    x_BSW = x_BSW if orders is None else x_BSW.index_select(1, orders[1])
    return torch.unflatten(x_BSW, 1, (len(group), -1)).transpose(0, 1).contiguous()
