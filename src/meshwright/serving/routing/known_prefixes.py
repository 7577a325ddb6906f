"""KnownPrefixes: what one replica is likely to have computed, as somebody outside of it can know."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from meshwright.serving.block.block_pool import BlockPool


class KnownPrefixes:
    """Prompts that a replica was given. It forgets as a replica does that has `num_blocks` blocks and keeps nothing else: the
    prefix that was used longest ago first. Blocks that outputs take in the replica are not seen."""

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks, block_tokens=1)

    def num_known(self, keys: Sequence[Hashable]) -> int:
        """Blocks at the beginning of a prompt that it has seen."""
        return len(self._pool.match(keys))

    def know(self, keys: Sequence[Hashable]) -> None:
        """A prompt is computed there."""
        kept = keys[: self._pool.num_blocks]
        blocks = self._pool.match(kept)
        self._pool.share(blocks)  # so that they do not make room for those behind them
        blocks += self._pool.take(len(kept) - len(blocks))
        self._pool.keep(kept, blocks)
        self._pool.give_back(blocks)
