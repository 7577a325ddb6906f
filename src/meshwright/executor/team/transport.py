"""Transport: how the members of one team exchange whole tensors; and the backend's own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Transport(Protocol):
    """Exchanges of equal, contiguous tensors, in the same order on all members. ``group``: torch's, for everything else."""

    group: Any

    def rank(self) -> int:
        """The member's number."""

    def size(self) -> int:
        """How many they are."""

    def gather(self, whole: Tensor) -> list[Any]:
        """Start filling `whole`, equal parts of the members along the first dimension, of which the own one is there."""

    def swap(self, sent: Tensor, received: Tensor) -> list[Any]:
        """Start exchanging equal parts of the first dimension, of which member n gets the n-th of every member."""

    def scatter_sum(self, whole: Tensor) -> Tensor:
        """This member's part of the sum along the first dimension, in memory of its own."""

    def combining(self, tensor: Tensor, *, is_maximum: bool, in_place: bool) -> Callable[[], Tensor]:
        """Start summing, or finding the element-wise maximum. The result is in the memory of `tensor`, or that stays what it
        is."""


class TorchTransport:
    """The backend's own collectives, as NCCL has them."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def rank(self) -> int:
        """The member's number."""
        return int(self.group.rank())

    def size(self) -> int:
        """How many they are."""
        return int(self.group.size())

    def gather(self, whole: Tensor) -> list[Any]:
        """One all-gather."""
        own = whole.chunk(self.size())[self.rank()]
        return [dist.all_gather_into_tensor(whole, own, group=self.group, async_op=True)]

    def swap(self, sent: Tensor, received: Tensor) -> list[Any]:
        """One all-to-all."""
        return [dist.all_to_all_single(received, sent, group=self.group, async_op=True)]

    def scatter_sum(self, whole: Tensor) -> Tensor:
        """One reduce-scatter."""
        own = torch.empty_like(whole.chunk(self.size())[self.rank()])
        dist.reduce_scatter_tensor(own, whole, group=self.group)
        return own

    def combining(self, tensor: Tensor, *, is_maximum: bool, in_place: bool) -> Callable[[], Tensor]:
        """One all-reduce."""
        total = tensor if in_place else tensor.clone(memory_format=torch.contiguous_format)
        options = dist.AllreduceOptions()
        operation = dist.ReduceOp.MAX if is_maximum else dist.ReduceOp.SUM
        options.reduceOp = operation  # type: ignore[assignment] # torch's stub has two names for the type
        work = self.group.allreduce([total], options)

        def result() -> Tensor:
            work.wait()
            return total

        return result
