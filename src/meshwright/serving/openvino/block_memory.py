"""The blocks of keys and values of all layers, in memory of our own: a fork, a swap or a transfer is a copy of bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import openvino
from numpy.typing import NDArray

from meshwright.serving.engine.runner import Pair
from meshwright.specs.error import OutOfMemoryError


class BlockLayout:
    """What one layer's keys, or values, of a block are: name of the graph's input, format, shape without the blocks' axis."""

    def __init__(self, port: openvino.ConstOutput) -> None:
        self.name = port.get_any_name()
        self.kind = port.get_element_type()
        self.shape = [size.get_length() for size in list(port.get_partial_shape())[1:]]
        self.num_bytes = math.prod(self.shape) * self.kind.bitwidth // 8


class BlockMemory:
    """`num_blocks` blocks that the graph reads and writes, and `num_host_blocks` to which others are swapped out.

    A block holds the keys and values of `BLOCK_TOKENS` tokens in all layers. Memory is zeroed and taken when it is first
    written to.
    """

    def __init__(self, layouts: Sequence[BlockLayout], num_blocks: int, num_host_blocks: int) -> None:
        self.layouts = tuple(layouts)
        try:
            self._blocks = [np.zeros((num_blocks, x.num_bytes), np.uint8) for x in self.layouts]
            self._host = [np.zeros((num_host_blocks, x.num_bytes), np.uint8) for x in self.layouts]
        except MemoryError:
            wanted = (num_blocks + num_host_blocks) * sum(layout.num_bytes for layout in self.layouts)
            raise OutOfMemoryError(
                f"{num_blocks} + {num_host_blocks} blocks of keys and values do not fit into memory",
                holders=[("blocks", wanted)],
                next="take fewer blocks",
            ) from None

    def tensors(self) -> Iterable[tuple[str, openvino.Tensor]]:
        """The graph's inputs by name; they share this memory."""
        for layout, blocks in zip(self.layouts, self._blocks):
            shape = openvino.Shape([len(blocks), *layout.shape])
            yield layout.name, openvino.Tensor(blocks, shape, layout.kind)

    def move(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """In this order; of each list all sources are read before anything is written."""
        for pairs, sources, targets in (
            (swap_out, self._blocks, self._host),
            (copies, self._blocks, self._blocks),
            (swap_in, self._host, self._blocks),
        ):
            if pairs:
                _copy(np.asarray(pairs, np.intp), sources, targets)


def _copy(
    pairs: NDArray[np.intp], sources: Sequence[NDArray[np.uint8]], targets: Sequence[NDArray[np.uint8]]
) -> None:
    for source, target in zip(sources, targets):
        target[pairs[:, 1]] = source[pairs[:, 0]]
