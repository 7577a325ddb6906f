"""Where the parameters of a group lie in one flat buffer of equal shards, and which boxes of tensors a range of it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


class FlatPiece(NamedTuple):
    """Elements ``first`` to ``first + length`` of a parameter, in row-major order, at ``place`` of a range of the buffer."""

    name: str
    first: int
    length: int
    place: int


class Box(NamedTuple):
    """A box of a tensor: where it begins, and its sizes."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class FlatLayout:
    """Tensors one behind the other, row-major, then padding up to ``num_shards`` equal shards."""

    shapes: Mapping[str, tuple[int, ...]]
    num_shards: int = 1

    @property
    def num_elements(self) -> int:
        """Of all tensors."""
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def shard_size(self) -> int:
        """Elements of a shard, padding among them."""
        return -(-self.num_elements // self.num_shards)

    @property
    def num_padded(self) -> int:
        """Elements of the buffer."""
        return self.shard_size * self.num_shards

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors within the whole buffer."""
        sizes = [prod(shape) for shape in self.shapes.values()]
        pieces = torch.split(flat[: self.num_elements], sizes)
        return {
            name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def packed(self, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A whole buffer with these tensors in their places; padding is zero."""
        whole = torch.zeros(self.num_padded, dtype=dtype, device=device)
        for name, view in self.views(whole).items():
            view.copy_(tensors[name].detach())
        return whole

    def segments(self, low: int, high: int) -> list[FlatPiece]:
        """What elements `low` to `high` of the buffer are; padding is nothing."""
        sizes = [prod(shape) for shape in self.shapes.values()]
        starts = accumulate(sizes, initial=0)
        found = []
        for name, start, size in zip(self.shapes, starts, sizes, strict=False):
            first, last = max(low, start), min(high, start + size)
            if first < last:
                found.append(FlatPiece(name, first - start, last - first, first - low))
        return found

    def shard(self, number: int) -> tuple[int, int]:
        """Where a shard begins and ends."""
        return number * self.shard_size, (number + 1) * self.shard_size


def boxes(shape: tuple[int, ...], first: int, length: int) -> Iterator[Box]:
    """The boxes that elements `first` to `first + length` of a row-major tensor are made of, in this order.

    A range that begins or ends within a row of the first dimension has its parts of these rows apart: of a matrix there
    are three boxes at most.
    """
    if not length:
        return
    if len(shape) <= 1:
        yield Box((first,) if shape else (), (length,) if shape else ())
        return
    row_size = prod(shape[1:])
    row, within = divmod(first, row_size)
    if within:
        part = min(length, row_size - within)
        yield from _in_row(row, shape, within, part)
        row, length = row + 1, length - part
    num_rows, rest = divmod(length, row_size)
    if num_rows:
        yield Box((row, *(0 for _ in shape[1:])), (num_rows, *shape[1:]))
    if rest:
        yield from _in_row(row + num_rows, shape, 0, rest)


def _in_row(row: int, shape: tuple[int, ...], first: int, length: int) -> Iterator[Box]:
    """Boxes of a part of one row."""
    for box in boxes(shape[1:], first, length):
        yield Box((row, *box.offsets), (1, *box.sizes))
