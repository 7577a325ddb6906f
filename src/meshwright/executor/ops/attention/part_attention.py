"""Attention of one rank's tokens of a sequence to keys and values that come block by block: a ring's steps, or all at once.

Shapes: B samples, s tokens here, m tokens of a block, H query heads, K key-value heads, D numbers of a head. A block of keys
and values is [2, B, m, K, D]; where values have another width V (latent attention) it is [1, B, m, K, D + V].

Nothing here communicates. A ring of P ranks that sends its blocks to the next rank (Liu et al. 2023, arXiv 2310.01889):

    attention, state = PartAttention(part, scale), None
    for step in range(P):
        state = attention.attend(query, block, state, part.source(step))     # then take the block of the rank before
    output = attention.finished(state, dtype)

Its backward keeps query, the own block, output and sums. Blocks travel again; the gradient of a block travels one hop behind
it, and one hop more brings it home:

    for step in range(P):
        attention.attend_backward(query, block, output, state.sums_BHs, output_gradient, query_gradient, block_gradient,
                                  part.source(step))                          # then send both on

Outputs and gradients are summed in float32 where the tensors are 16-bit: rounded at every block, errors would grow with the
ring. Blocks that are gathered instead (`gathered_attention`) are one call with ``part.whole``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.rotary import Rotation, rotate
from meshwright.executor.ops.attention.tile_kernel import (
    EMPTY_SUM,
    tile_backward,
    tile_forward,
    wide_dtype,
)
from meshwright.executor.ops.attention.visible_tile import Tile, visible_tiles
from meshwright.specs.sequence.sequence_part import OwnTokens


class AttentionState(NamedTuple):
    """What is known after some blocks: the output over their keys [B, s, H, D], the logarithms of the sums [B, H, s]; both in
    float32 or float64, written to by the next block.
    """

    output_BsHD: Tensor
    sums_BHs: Tensor


def query_and_block(qkv: Tensor, layout: HeadLayout, turn: Rotation | None) -> tuple[Tensor, Tensor]:
    """Query [B, s, H, D], scaled and turned, and the block of keys and values [2, B, s, K, D] of a fused projection
    [B, s, (H + 2K) D]; differentiable. `turn`: at the places of these tokens (`decoder.begin`), [s, D/2] or [B, 1, s, D/2].
    """
    heads = (*qkv.shape[:-1], -1, layout.head_dim)
    query, key, value = (
        x.view(heads) for x in torch.split(qkv, [layout.query_size, layout.key_size, layout.key_size], dim=-1)
    )
    if turn is None:
        query = query * layout.head_dim**-0.5
    else:
        query = rotate(query, _over_heads(turn.query))
        key = rotate(key, _over_heads(turn.key))
    return query, torch.stack((key, value))


def _over_heads(turn: Tensor) -> Tensor:
    """[s, D/2] or [B, 1, s, D/2] as [s, 1, D/2] or [B, s, 1, D/2]."""
    return turn[:, None] if turn.dim() == 2 else turn.transpose(1, 2)


@dataclass(frozen=True)
class PartAttention:
    """Of the queries of `part`. `scale`: of their products with keys; 1 where queries are scaled already. Without `is_causal`
    every token sees all (encoders).
    """

    part: OwnTokens
    scale: float = 1.0
    is_causal: bool = True

    @torch.no_grad()
    def attend(
        self,
        query: Tensor,
        block: Tensor,
        state: AttentionState | None,
        keys: OwnTokens,
        mask: DocumentMask | None = None,
    ) -> AttentionState:
        """The state with one block more, written over the one that is given; None: this is the first block.

        Args:
            query: [B, s, H, D]; block: [2, B, m, K, D], keys and values of the tokens of `keys`.
            mask: documents and window (`within_window`) of the whole sequence; None: a token sees all before it.
        """
        width = keys_and_values(block, query.shape[-1])[1].shape[-1]
        query = query.transpose(1, 2)
        for tile in visible_tiles(self.part, keys, mask, self.is_causal):
            key, value = _of_tile(block, query.shape[-1], tile)
            output, sums = tile_forward(query[:, :, tile.rows], key, value, tile, self.scale)
            if state is None and tile.rows == slice(0, query.shape[2]):
                state = AttentionState(output.transpose(1, 2).to(wide_dtype(query.dtype)), sums)
            else:
                state = _empty(query, width) if state is None else state
                merge(state, output, sums, tile.rows)
        return _empty(query, width) if state is None else state

    def finished(self, state: AttentionState, dtype: torch.dtype) -> Tensor:
        """The output [B, s, H D] once all blocks were seen."""
        return state.output_BsHD.flatten(2).to(dtype)

    def gradients_of(self, x: Tensor) -> Tensor:
        """Zeros to add gradients of queries or of a block to, float32 where these are 16-bit."""
        return torch.zeros_like(x, dtype=wide_dtype(x.dtype), memory_format=torch.contiguous_format)

    @torch.no_grad()
    def attend_backward(
        self,
        query: Tensor,
        block: Tensor,
        output: Tensor,
        sums: Tensor,
        output_gradient: Tensor,
        query_gradient: Tensor,
        block_gradient: Tensor,
        keys: OwnTokens,
        mask: DocumentMask | None = None,
    ) -> None:
        """Add this block's share to the gradients of the queries [B, s, H, D] and of the block [2, B, m, K, D], in place.

        Args:
            query, block, keys, mask: as `attend` had them.
            output, sums: of all blocks: [B, s, H D] as `finished` gave it, [B, H, s].
            output_gradient: [B, s, H D].
        """
        rows = [x.reshape(*query.shape[:3], -1).transpose(1, 2) for x in (output, output_gradient)]
        query, query_gradient = query.transpose(1, 2), query_gradient.transpose(1, 2)
        both = keys_and_values(block_gradient, query.shape[-1])
        key_gradient, value_gradient = (x.transpose(1, 2) for x in both)
        for tile in visible_tiles(self.part, keys, mask, self.is_causal):
            here = tile.rows
            dquery, dkey, dvalue = tile_backward(
                query[:, :, here], *_of_tile(block, query.shape[-1], tile), rows[0][:, :, here], sums[:, :, here],
                rows[1][:, :, here], tile, self.scale,
            )  # fmt: skip
            query_gradient[:, :, here] += dquery
            key_gradient[:, :, tile.keys] += dkey
            value_gradient[:, :, tile.keys] += dvalue


def keys_and_values(block: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Views of a block: keys [B, m, K, D], values [B, m, K, V]."""
    if len(block) == 2:
        return block[0], block[1]
    key, value = torch.split(block[0], [head_dim, block.shape[-1] - head_dim], -1)
    return key, value


def _of_tile(block: Tensor, head_dim: int, tile: Tile) -> tuple[Tensor, Tensor]:
    """Key [B, K, keys, D] and value [B, K, keys, V] of a block."""
    key, value = (x.transpose(1, 2)[:, :, tile.keys] for x in keys_and_values(block, head_dim))
    return key, value


def _empty(query: Tensor, width: int) -> AttentionState:
    """Before any key, of queries [B, H, s, D] and values so wide."""
    batch, num_heads, num_tokens, _ = query.shape
    wide = wide_dtype(query.dtype)
    return AttentionState(
        query.new_zeros((batch, num_tokens, num_heads, width), dtype=wide),
        query.new_full((batch, num_heads, num_tokens), EMPTY_SUM, dtype=wide),
    )


ALL_ROWS = slice(None)


def merge(state: AttentionState, output: Tensor, sums: Tensor, rows: slice = ALL_ROWS) -> None:
    """Add some rows' attention to other keys: output [B, H, rows, D], sums [B, H, rows]; in any order of keys. Only
    differences of sums go through an exponential, and never one that overflows."""
    so_far, old = state.output_BsHD[:, rows].transpose(1, 2), state.sums_BHs[:, :, rows]
    share = torch.sigmoid(sums - old)
    so_far.add_((output - so_far).mul_(share[..., None]))
    torch.logaddexp(old, sums, out=old)
