"""The CUDA device of this machine: what PyTorch says of it, and which of our data sheets is its."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import asdict, dataclass

import torch

from meshwright.executor.job.environment import torch_facts
from meshwright.specs.cluster.device import DeviceSpec, device_presets, load_device


@dataclass(frozen=True)
class Found:
    """One device. ``kind``: the name of its data sheet, empty where we have none."""

    name: str
    memory_bytes: int
    kind: str
    torch: str
    cuda: str
    nccl: str
    driver: str
    python: str

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)


def found_device() -> tuple[Found | None, str]:
    """The first device, and why there is none."""
    facts = torch_facts()
    if not facts.devices:
        return None, facts.problem or f"PyTorch {facts.version} sees no CUDA device"
    name, memory = facts.devices[0]
    kind = kind_of(name, memory)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if facts.has_nccl else ""
    return Found(
        name, memory, kind, facts.version, facts.cuda, nccl, _driver(), platform.python_version()
    ), ""


def kind_of(name: str, memory_bytes: int) -> str:
    """The data sheet whose name stands in what the driver calls the device, of several the one nearest in memory.

    kind_of("NVIDIA H100 80GB HBM3", 85_000_000_000) -> "H100"
    """
    words = name.replace("-", " ").lower().split()
    presets = [load_device(each) for each in device_presets()]
    named = [each for each in presets if each.name.lower().replace("-", " ").split()[0] in words]

    def distance(device: DeviceSpec) -> float:
        return abs(device.memory_bytes / memory_bytes - 1)

    return min(named, key=distance).name if named else ""


def _driver() -> str:
    """The version of the driver, empty where nobody says it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.splitlines()[0].strip() if said else ""
