"""Attention of queries that travel to keys and values that stay, and messages of what it makes for the queries' own rank.

Shapes: B samples, s tokens of a rank, H query heads, K key-value heads, D numbers of a query's head, V of a value's; w
numbers of the tensors' dtype for one of the wide dtype (float32 for 16-bit formats: 2, else 1).

Nothing here communicates. On every rank of a ring of P (Wang et al. 2024, arXiv 2412.20501):

    for step in range(P):                       # query: of the rank `step` before; it goes on to the next rank
        found = PartAttention(part.source(step)).attend(query, block, None, part)
        ...                                     # step 0: the state; else `packed_state(found)`, to that rank
    merge_packed(state, each)                   # of what came back, in any order

What returns is one tensor: outputs rounded to the tensors' dtype beside logarithms of sums that are not. A sum over ranks is
kept in the wide dtype, and every output is rounded once on its way, so errors do not grow with the ring.

A backward needs of a row: its query, its output's gradient, the logarithm of its sum, and the product of its output and
that gradient, which stands for the output (`packed_rows`). With these every rank adds to the gradients of its own keys and
values, and sends back what it finds for the queries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import AttentionState, keys_and_values, merge
from meshwright.executor.ops.attention.tile_kernel import backward_of_rows, row_products, wide_dtype
from meshwright.executor.ops.attention.visible_tile import visible_tiles
from meshwright.specs.sequence.sequence_part import OwnTokens


def wide_numbers(dtype: torch.dtype) -> int:
    """Numbers of a dtype that have the bytes of one in which sums are kept."""
    return wide_dtype(dtype).itemsize // dtype.itemsize


def packed_state(state: AttentionState, dtype: torch.dtype) -> Tensor:
    """What was found for queries of another rank, as one message [B, s, H, V + w]."""
    return torch.cat((state.output_BsHD.to(dtype), _as_numbers(state.sums_BHs, dtype)), -1)


def merge_packed(state: AttentionState, packed: Tensor) -> None:
    """Add what another rank found to the state of the own queries."""
    width = packed.shape[-1] - wide_numbers(packed.dtype)
    merge(state, packed[..., :width].transpose(1, 2), _as_sums(packed[..., width:]))


class Rows(NamedTuple):
    """What a backward needs of queries: [B, s, H, D], gradients of their outputs [B, s, H, V], logarithms of their sums and
    products of outputs and gradients [B, H, s]."""

    query: Tensor
    output_gradient: Tensor
    sums: Tensor
    products: Tensor


def packed_rows(query: Tensor, output: Tensor, sums: Tensor, output_gradient: Tensor) -> Tensor:
    """`Rows` as one message [B, s, H, D + V + 2 w]; output and its gradient are [B, s, H V]."""
    heads = (*query.shape[:3], -1)
    output, output_gradient = output.reshape(heads), output_gradient.reshape(heads)
    products = row_products(output.transpose(1, 2), output_gradient.transpose(1, 2))
    numbers = (_as_numbers(x, query.dtype) for x in (sums, products))
    return torch.cat((query, output_gradient.to(query.dtype), *numbers), -1)


def rows_of(packed: Tensor, head_dim: int) -> Rows:
    """What such a message says of queries of `head_dim` numbers a head."""
    w = wide_numbers(packed.dtype)
    query, gradient, sums, products = torch.split(
        packed, [head_dim, packed.shape[-1] - head_dim - 2 * w, w, w], -1
    )
    return Rows(query, gradient, _as_sums(sums), _as_sums(products))


@torch.no_grad()
def attend_backward(
    rows: Rows,
    queries: OwnTokens,
    block: Tensor,
    keys: OwnTokens,
    block_gradient: Tensor,
    mask: DocumentMask | None = None,
) -> Tensor:
    """Adds to the gradient of a block [2, B, m, K, D] of the tokens of `keys`; that of the queries [B, s, H, D], its share
    of these keys, in the wide dtype."""
    head_dim = rows.query.shape[-1]
    query, gradient = rows.query.transpose(1, 2), rows.output_gradient.transpose(1, 2)
    query_gradient = torch.zeros_like(query, dtype=wide_dtype(query.dtype))
    both = [x.transpose(1, 2) for x in keys_and_values(block, head_dim)]
    of_both = [x.transpose(1, 2) for x in keys_and_values(block_gradient, head_dim)]
    for tile in visible_tiles(queries, keys, mask):
        here, (key, value) = tile.rows, (x[:, :, tile.keys] for x in both)
        dquery, *found = backward_of_rows(
            query[:, :, here], key, value, rows.products[:, :, here], rows.sums[:, :, here], gradient[:, :, here],
            tile, 1.0,
        )  # fmt: skip
        query_gradient[:, :, here] += dquery
        for own, added in zip(of_both, found, strict=True):
            own[:, :, tile.keys] += added
    return query_gradient.transpose(1, 2).contiguous()


def _as_numbers(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, s] in the wide dtype as numbers [B, s, H, w] of another, bit by bit."""
    return sums.transpose(1, 2).contiguous()[..., None].view(dtype)


def _as_sums(numbers: Tensor) -> Tensor:
    """[B, s, H, w] back as [B, H, s]."""
    return numbers.contiguous().view(wide_dtype(numbers.dtype))[..., 0].transpose(1, 2)
