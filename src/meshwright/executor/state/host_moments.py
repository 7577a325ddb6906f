"""The optimizer's moments of a parameter group, on the device or in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.executor.meter.live_storage import born_on_host
from meshwright.executor.ops.optimizer_step import Optimizer


class HostMoments:
    """``tensors``: those that `step` steps, by which it has its state. What was stored once keeps its memory
    on the host while the device has a copy. ``is_stored``: the device has none."""

    def __init__(self, step: Optimizer, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._optimizer, self._tensors, self._device = step.optimizer, tensors, device
        self._names = step.config.rule.state  # not the count of steps
        self._stored: list[dict[str, Tensor]] = [{} for _ in tensors]
        self.is_stored = False

    def store(self) -> None:
        """Move the moments to the host's memory."""
        if self._optimizer is None:
            return
        for tensor, host in zip(self._tensors, self._stored, strict=True):
            kept = self._optimizer.state[tensor]
            for name in self._names:
                moment = kept.pop(name)
                with born_on_host():
                    host[name] = host[name].copy_(moment) if name in host else moment.to("cpu", copy=True)
        self.is_stored = True

    def load(self) -> None:
        """Copy the moments from the host's memory."""
        if self._optimizer is None:
            return
        for tensor, host in zip(self._tensors, self._stored, strict=True):
            for name, moment in host.items():
                self._optimizer.state[tensor][name] = moment.to(self._device, copy=True)
        self.is_stored = False

    def tensors(self) -> list[Tensor]:
        """What is in the host's memory."""
        return [moment for host in self._stored for moment in host.values()]

    def states(self) -> list[dict[str, Tensor]]:
        """The optimizer's state of every tensor, wherever it is."""
        states = {} if self._optimizer is None else self._optimizer.state
        hosts = self._stored if self.is_stored else [{}] * len(self._tensors)
        return [{**states.get(tensor, {}), **host} for tensor, host in zip(self._tensors, hosts, strict=True)]
