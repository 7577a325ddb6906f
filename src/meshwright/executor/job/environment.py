"""What torch is on this machine, as plain facts: version, backends, devices. Asked only where torch is installed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class TorchFacts:
    """``devices``: name and memory in bytes of every CUDA device. ``problem``: what CUDA said when it was asked."""

    version: str
    has_gloo: bool
    has_nccl: bool
    cuda: str
    devices: tuple[tuple[str, int], ...] = ()
    problem: str = ""


def torch_facts() -> TorchFacts:
    """Ask torch. A driver that does not answer is a fact, no error."""
    is_there = dist.is_available()
    has_gloo = is_there and dist.is_gloo_available()
    has_nccl = is_there and dist.is_nccl_available()
    devices: list[tuple[str, int]] = []
    problem = ""
    try:
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            devices.append((properties.name, properties.total_memory))
    except (RuntimeError, AssertionError) as error:
        problem = str(error).splitlines()[0]
    return TorchFacts(
        torch.__version__, has_gloo, has_nccl, torch.version.cuda or "", tuple(devices), problem
    )
