"""KeyValueBlocks: the keys and values of some layers in blocks, and blocks in host memory to which others are swapped out.

What latent attention keeps of a token is key and value at once, and there once.

Shapes: L layers, N blocks, b tokens of a block, K key-value heads, D numbers of a head, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.serving.engine.runner import Pair

KEYS_AND_VALUES = 2


class KeyValueBlocks:
    """``pages`` is [2, L, N, b, K, D], keys first, or without `has_values` [1, L, N, b, K, D]. All begin as zeros: what is
    hidden by a mask still has to be a number."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
        *,
        has_values: bool = True,
    ) -> None:
        num_kinds = KEYS_AND_VALUES if has_values else 1

        def pages(count: int, where: torch.device) -> Tensor:
            shape = (num_kinds, num_layers, count, block_tokens, num_kv_heads, head_dim)
            is_pinned = device.type == "cuda" and where.type == "cpu"
            return torch.zeros(shape, dtype=dtype, device=where, pin_memory=is_pinned)

        self.pages, self.host_pages = pages(num_blocks, device), pages(num_host_blocks, torch.device("cpu"))

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, by its place here: [N, b, K, D] each, or the same twice."""
        return self.pages[0, layer], self.pages[-1, layer]

    def write(self, layer: int, slots_T: Tensor, *new: Tensor) -> None:
        """Put new keys and values [T, K, D], or what is both, into their slots, block x b + place in the block."""
        for pages, each in zip(self.pages[:, layer], new, strict=True):
            pages.flatten(0, 1).index_copy_(0, slots_T, each)

    def move(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """As `Runner.move_blocks`."""
        _copy(self.pages, self.host_pages, swap_out)
        _copy(self.pages, self.pages, copies)
        _copy(self.host_pages, self.pages, swap_in)


def _copy(source: Tensor, target: Tensor, pairs: Sequence[Pair]) -> None:
    """Blocks to their places; one by one where a pair reads what another has written, or two write the same."""
    if not pairs:
        return
    sources, targets = (list(column) for column in zip(*pairs, strict=True))
    is_chained = source is target and not set(sources).isdisjoint(targets)
    if is_chained or len(set(targets)) < len(targets):
        for first, second in pairs:
            target[:, :, second] = source[:, :, first]
    else:
        target[:, :, targets] = source[:, :, sources].to(target.device)
