"""A piece: a box of one of the model's tensors as this rank holds it; what checkpoints save and load, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass

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
