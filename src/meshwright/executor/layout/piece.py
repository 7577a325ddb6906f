"""A piece: a box of one of the model's tensors as this rank holds it; what checkpoints save and load, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """``tensor`` is the box at ``offsets`` of the tensor ``name`` of shape ``whole``.

    It is a view of what is trained: who writes into it changes the training. Names are those of the whole model
    ("layers.3.qkv.weight"), with the moment in front for the optimizer's ("exp_avg/layers.3.qkv.weight"). Ranks that hold
    copies of the same box give pieces with the same name and offsets. A number, such as the count of steps, is a tensor
    without dimensions.
    """

    name: str
    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    tensor: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the box."""
        return tuple(self.tensor.shape)

    def to_row(self) -> dict[str, Any]:
        """Plain values and the tensor, for a file that holds nothing else."""
        return {"name": self.name, "whole": self.whole, "offsets": self.offsets, "tensor": self.tensor}


def assembled(rows: Iterable[dict[str, Any]], into: dict[str, Tensor]) -> None:
    """Put boxes (`Piece.to_row`) where they belong in the whole tensors of `into`, which has those that it lacks made."""
    for row in rows:
        name, tensor, whole = row["name"], row["tensor"], tuple(row["whole"])
        if tuple(tensor.shape) == whole:
            into[name] = tensor
            continue
        target = into.setdefault(name, tensor.new_zeros(whole))
        place = tuple(slice(at, at + size) for at, size in zip(row["offsets"], tensor.shape, strict=True))
        target[place] = tensor
