"""HeldTensors: what an autograd graph keeps for its backward, so that it can leave the device and come back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _Place:
    """Of one tensor, wherever it is."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class HeldTensors:
    """Of a forward that runs within `watching`. Parameters stay where they are, and what several nodes keep is held once."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {each.untyped_storage().data_ptr() for each in parameters}
        self._places: dict[tuple[object, ...], _Place] = {}

    def watching(self) -> saved_tensors_hooks:
        """A context: graphs made within it keep places of tensors, not tensors."""
        return saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: Tensor) -> Tensor | _Place:
        at = tensor.untyped_storage().data_ptr()
        if at in self._parameters or not tensor.numel():
            return tensor
        key = (at, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        return self._places.setdefault(key, _Place(tensor.detach()))

    def move(self, device: torch.device) -> None:
        """Copy all to a device, and let go of them where they were."""
        for place in self._places.values():
            place.tensor = place.tensor.to(device, copy=True)


def _unpack(kept: Tensor | _Place) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept.tensor
