"""Attention of packed tokens over paged blocks with torch's own kernels: which keys a step reads, and the reading.

Decodes (one new token) are gathered together and padded; of a longer chunk the queries go in tiles over its own keys.

Shapes: T new tokens, n decodes of a group, c keys of the longest, q queries of a tile, N blocks, b tokens of a block, K
key-value heads, G query heads of each, D numbers of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from meshwright.serving.engine.runner import StepInputs

TILE_TOKENS = 256  # queries of a tile: what lies above the diagonal is at most half a tile of keys
LEAST_FILLED = 0.75  # a decode whose blocks fill less of the longest's in its group begins a new group
GATHERED_TOKENS = 32_768  # keys that one gather copies, at most: 32 MB of 8 heads of 64 numbers in bfloat16
MASK_NUMBERS = 1 << 26  # of all tiles of a step: more are made again in every layer instead of kept

Places = NDArray[np.int64]


class Decodes(NamedTuple):
    """Rows of the step [n], the blocks of each [n * blocks], and what is added to its scores [n, 1, 1, c]."""

    rows_n: Tensor
    blocks: Tensor
    mask: Tensor


class QueryTile(NamedTuple):
    """Queries ``first`` to ``last`` of the step, and keys ``low`` to ``high`` of those that the chunk gathers.

    ``begin``: the place among these keys of the first query's own. ``mask`` [q, high - low]; None: made when it is read.
    """

    first: int
    last: int
    low: int
    high: int
    begin: int
    mask: Tensor | None = None


class KeyChunk(NamedTuple):
    """The blocks that a chunk's queries read. ``is_whole``: one tile whose keys are its queries' own, without a window."""

    blocks: Tensor
    tiles: list[QueryTile]
    is_whole: bool


@dataclass(frozen=True)
class PagedReads:
    """What the layers with one window read in a step. ``window``: the last so many tokens are seen (0: all)."""

    window: int
    decodes: tuple[Decodes, ...]
    chunks: tuple[KeyChunk, ...]

    def attend(
        self, query_TKGD: Tensor, keys: Tensor, values: Tensor, scale: float, sinks_KG: Tensor | None = None
    ) -> Tensor:
        """``keys``, ``values`` [N, b, K, D], new ones already in place -> [T, K * G * D]."""
        out = torch.empty_like(query_TKGD)
        for group in self.decodes:
            query = query_TKGD.index_select(0, group.rows_n)  # [n, K, G, D]: a group's heads share keys
            key, value = (_gathered(x, group.blocks, len(group.rows_n)) for x in (keys, values))
            if sinks_KG is None:
                found = F.scaled_dot_product_attention(query, key, value, group.mask, scale=scale)
            else:
                found = _with_sinks(query, key, value, group.mask, scale, sinks_KG[None, :, :, None])
            out.index_copy_(0, group.rows_n, found)
        for chunk in self.chunks:
            # [K, 1, c, D], the same for all heads of a group without a copy
            key, value = (_gathered(x, chunk.blocks, 1).transpose(0, 1) for x in (keys, values))
            for tile in chunk.tiles:
                query = query_TKGD[tile.first : tile.last].permute(1, 2, 0, 3)  # [K, G, q, D]
                seen = key[:, :, tile.low : tile.high], value[:, :, tile.low : tile.high]
                if sinks_KG is not None:
                    mask, sinks = self._mask(tile, query), sinks_KG[:, :, None, None]
                    found = _with_sinks(query, *seen, mask, scale, sinks)
                else:
                    shape = (*query.shape[:2], -1, -1)
                    found = F.scaled_dot_product_attention(
                        query, seen[0].expand(shape), seen[1].expand(shape),
                        None if chunk.is_whole else self._mask(tile, query), is_causal=chunk.is_whole, scale=scale,
                    )  # fmt: skip
                out[tile.first : tile.last] = found.permute(2, 0, 1, 3)
        return out.flatten(1)

    def _mask(self, tile: QueryTile, like: Tensor) -> Tensor:
        return tile.mask if tile.mask is not None else tile_mask(tile, self.window, like.dtype, like.device)


def _with_sinks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, sinks: Tensor
) -> Tensor:
    """Attention of queries [a, h, q, D] to keys [a, h or 1, c, D], and one more behind them: zeros, whose score is its head's
    sink and whose value adds nothing. `mask` and `sinks` are broadcast to [a, h, q, c] and [a, h, q, 1]."""
    nothing, to_each = key.new_zeros(*key.shape[:2], 1, key.shape[3]), query.shape[:3]
    scores = torch.cat((mask.expand(*to_each, -1), sinks.to(mask.dtype).expand(*to_each, 1)), -1)
    shape = (*query.shape[:2], -1, -1)
    keys, values = (torch.cat((each, nothing), 2).expand(shape) for each in (key, value))
    return F.scaled_dot_product_attention(query, keys, values, scores, scale=scale)


def _gathered(pages: Tensor, blocks: Tensor, num_sequences: int) -> Tensor:
    """[N, b, K, D] -> [sequences, K, keys, D]."""
    found = pages.index_select(0, blocks)
    return found.view(num_sequences, -1, *pages.shape[2:]).transpose(1, 2)


def paged_reads(
    inputs: StepInputs, window: int, block_tokens: int, dtype: torch.dtype, device: torch.device
) -> PagedReads:
    """The reads of a step, for layers with this window."""
    counts = np.diff(inputs.query_starts).astype(np.int64)
    decodes = _decode_groups(inputs, np.flatnonzero(counts == 1), window, block_tokens, dtype, device)
    budget = MASK_NUMBERS
    chunks = []
    for sequence in np.flatnonzero(counts > 1):
        chunk = _chunk(inputs, int(sequence), window, block_tokens, device)
        budget -= sum((tile.last - tile.first) * (tile.high - tile.low) for tile in chunk.tiles)
        if budget > 0 and not chunk.is_whole:
            tiles = [tile._replace(mask=tile_mask(tile, window, dtype, device)) for tile in chunk.tiles]
            chunk = chunk._replace(tiles=tiles)
        chunks.append(chunk)
    return PagedReads(window, tuple(decodes), tuple(chunks))


def tile_mask(tile: QueryTile, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """-inf where a query may not see a key: [q, high - low]."""
    queries = torch.arange(tile.begin, tile.begin + tile.last - tile.first, device=device)[:, None]
    keys = torch.arange(tile.low, tile.high, device=device)
    is_hidden = keys > queries
    if window:
        is_hidden |= keys <= queries - window
    return torch.zeros(is_hidden.shape, dtype=dtype, device=device).masked_fill_(is_hidden, -torch.inf)


def _chunk(
    inputs: StepInputs, sequence: int, window: int, block_tokens: int, device: torch.device
) -> KeyChunk:
    """Of one sequence with several new tokens."""
    first, last = (int(inputs.query_starts[sequence + i]) for i in (0, 1))
    past, count = int(inputs.past_lengths[sequence]), last - first
    is_whole = past == 0 and not 0 < window < count
    low_block = max(0, past - window + 1) // block_tokens if window else 0
    starts = inputs.block_starts
    end = int(starts[sequence]) - (-(past + count) // block_tokens)
    blocks = torch.from_numpy(inputs.block_ids[int(starts[sequence]) + low_block : end].astype(np.int64))
    shift = past - low_block * block_tokens  # the place of the chunk's first own key among those gathered
    size = count if is_whole else TILE_TOKENS
    tiles = [
        QueryTile(
            first + at, first + min(at + size, count), max(0, shift + at - window + 1) if window else 0,
            shift + min(at + size, count), shift + at,
        )
        for at in range(0, count, size)
    ]  # fmt: skip
    return KeyChunk(blocks.to(device), tiles, is_whole)


def _decode_groups(
    inputs: StepInputs,
    sequences: Places,
    window: int,
    block_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[Decodes]:
    """Sequences with one new token, those of about the same length together."""
    if not len(sequences):
        return
    contexts = inputs.past_lengths[sequences].astype(np.int64) + 1
    first_keys = np.maximum(contexts - window, 0) if window else np.zeros_like(contexts)
    first_blocks = first_keys // block_tokens
    num_blocks = -(-contexts // block_tokens) - first_blocks
    order = np.argsort(-num_blocks, kind="stable")
    begin = 0
    while begin < len(order):
        most = int(num_blocks[order[begin]])
        fits = max(1, GATHERED_TOKENS // (most * block_tokens))
        end = begin + int(np.sum(num_blocks[order[begin : begin + fits]] >= LEAST_FILLED * most))
        chosen = order[begin:end]
        within = np.arange(most)[None]
        starts = inputs.block_starts[sequences[chosen]].astype(np.int64) + first_blocks[chosen]
        # what pads a shorter one is its own last block once more, all hidden
        at = starts[:, None] + np.minimum(within, num_blocks[chosen][:, None] - 1)
        blocks = inputs.block_ids[at].astype(np.int64).reshape(-1)
        places = first_blocks[chosen][:, None] * block_tokens + np.arange(most * block_tokens)[None]
        is_hidden = (places >= contexts[chosen][:, None]) | (places < first_keys[chosen][:, None])
        mask = torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(is_hidden), -torch.inf)
        rows = torch.from_numpy(inputs.query_starts[sequences[chosen]].astype(np.int64))
        yield Decodes(rows.to(device), torch.from_numpy(blocks).to(device), mask[:, None, None].to(device))
        begin = end
