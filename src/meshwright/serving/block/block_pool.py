"""The blocks of keys and values of one engine: which are free, which several sequences share, which hold known prefixes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from meshwright.serving.block.radix_tree import RadixTree
from meshwright.specs.error import SpecError


class BlockPool:
    """`num_blocks` blocks of `block_tokens` tokens. A block is free, held by sequences, or cached (kept by the tree
    alone, and taken back when nothing is free).

    Only blocks with more than one holder, or with the tree as one, are counted one by one; a sequence holds most of
    its blocks alone, and these come and go as runs.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise SpecError(
                f"{num_blocks} blocks of {block_tokens} tokens", allowed="at least one block of one token"
            )
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders: dict[int, int] = {}  # of shared blocks: sequences that hold it, the tree not counted
        self._tree = RadixTree()
        self._num_cached = 0  # blocks that the tree holds alone

    @property
    def num_free(self) -> int:
        """Blocks that can be taken: those nobody has, and those that only the tree keeps."""
        return len(self._free) + self._num_cached

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that are kept for prefixes only."""
        return self._num_cached

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self.block_tokens)

    def take(self, num: int) -> list[int]:
        """`num` blocks for one sequence; the prefixes used longest ago make room. Never asked for more than `num_free`."""
        free = self._free
        if len(free) < num:
            self._evict(num - len(free))
        if num == 1:  # what every step asks for
            return [free.pop()]
        if not num:
            return []
        taken = free[-num:]
        del free[-num:]
        taken.reverse()
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """A sequence lets go of all that it holds."""
        holders = self._holders
        if not holders:
            self._free.extend(blocks)
            return
        for block in blocks:
            held = holders.get(block)
            if held is None:
                self._free.append(block)
            elif held > 1 or block in self._tree:
                holders[block] = held - 1
                self._num_cached += held == 1
            else:
                del holders[block]
                self._free.append(block)

    def share(self, blocks: Sequence[int]) -> None:
        """One more sequence holds these, which another or the tree holds."""
        holders = self._holders
        for block in blocks:
            held = holders.get(block, 1)
            holders[block] = held + 1
            self._num_cached -= held == 0

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """The blocks of the longest known prefix of `keys`; they stay whose they are until `share`."""
        return self._tree.match(keys) if keys else []

    def keep(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        """Full blocks that a sequence holds are kept under their keys, for others to find. Where a key is there already, the
        block that is known under it stays."""
        for block in self._tree.insert(keys, blocks):
            self._holders.setdefault(block, 1)

    def check(self) -> None:
        """Every block is free, held or cached, and counted once."""
        cached = sum(not held for held in self._holders.values())
        assert cached == self._num_cached, (cached, self._num_cached)
        assert len(set(self._free)) == len(self._free) and not self._holders.keys() & set(self._free)
        assert set(self._tree.blocks()) <= self._holders.keys()

    def _evict(self, num: int) -> None:
        """The tree lets go of at least `num` blocks that it holds alone."""
        for block in self._tree.evict(num, lambda block: not self._holders[block]):
            del self._holders[block]
            self._num_cached -= 1
            self._free.append(block)
