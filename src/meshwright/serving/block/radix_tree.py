"""Known prefixes: a radix tree whose edges are runs of full blocks, found by what is in them.

The idea is RadixAttention's (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2023), at the
granularity of blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence


class Node:
    """A run of blocks behind its parent's. What is used is used with all that lies before it."""

    __slots__ = ("blocks", "children", "keys", "parent", "used")

    def __init__(self, keys: list[Hashable], blocks: list[int], parent: Node | None, used: int) -> None:
        self.keys, self.blocks, self.parent, self.used = keys, blocks, parent, used
        self.children: dict[Hashable, Node] = {}


class RadixTree:
    """Keys of blocks -> blocks, by longest prefix; a block stands in it once."""

    def __init__(self) -> None:
        self._root = Node([], [], None, 0)
        self._blocks: set[int] = set()
        self._time = 0

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def blocks(self) -> Iterator[int]:
        """All blocks that it knows."""
        yield from self._blocks

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """The blocks of the longest prefix of `keys` that is known."""
        found: list[int] = []
        for node, length in self._walk(keys):
            found += node.blocks[:length]
        return found

    def insert(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> list[int]:
        """Know `blocks[i]` by `keys[: i + 1]`; returns those that are new here. A known key keeps its block, and what lies
        behind another's block is not added: who holds a block here holds all before it, so its end can be forgotten first.
        """
        node, place = self._root, 0
        for step, length in self._walk(keys):
            if step.blocks[:length] != list(blocks[place : place + length]):
                return []
            node, place = step, place + length
            if length < len(step.keys):
                node = self._split(step, length)
        new = list(blocks[place : len(keys)])
        if new:
            node.children[keys[place]] = Node(list(keys[place:]), new, node, self._time)
            self._blocks.update(new)
        return new

    def evict(self, num: int, is_unused: Callable[[int], bool]) -> list[int]:
        """Forget at least `num` unused blocks, if there are so many: from ends, the end used longest ago first."""
        ends = [(node.used, number, node) for number, node in enumerate(self._ends())]
        heapq.heapify(ends)
        gone: list[int] = []
        while ends and len(gone) < num:
            _, _, node = heapq.heappop(ends)
            while node.blocks and len(gone) < num and is_unused(node.blocks[-1]):
                gone.append(node.blocks.pop())
                last_key = node.keys.pop()
            parent = node.parent
            if not node.blocks and parent is not None:
                del parent.children[last_key]
                if not parent.children and parent.parent is not None:
                    heapq.heappush(ends, (parent.used, -len(gone), parent))
        self._blocks.difference_update(gone)
        return gone

    def _walk(self, keys: Sequence[Hashable]) -> Iterator[tuple[Node, int]]:
        """The nodes along `keys`, and how far each agrees with them; all have been used now."""
        self._time += 1
        node, place, num = self._root, 0, len(keys)
        while place < num:
            child = node.children.get(keys[place])
            if child is None:
                return
            length, most = 1, min(len(child.keys), num - place)
            while length < most and child.keys[length] == keys[place + length]:
                length += 1
            child.used = self._time
            is_whole = length == len(child.keys)
            yield child, length  # which may split it
            if not is_whole:
                return
            node, place = child, place + length

    def _split(self, node: Node, length: int) -> Node:
        """A node of the first `length` blocks, before that of the others."""
        parent = node.parent
        assert parent is not None
        first = Node(node.keys[:length], node.blocks[:length], parent, node.used)
        parent.children[first.keys[0]] = first
        node.keys, node.blocks, node.parent = node.keys[length:], node.blocks[length:], first
        first.children[node.keys[0]] = node
        return first

    def _ends(self) -> Iterator[Node]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            if not node.children and node.parent is not None:
                yield node
            stack.extend(node.children.values())
