"""fit_probability: how likely a plan on GPUs fits into so many bytes, from the interval of its memory estimate."""

from __future__ import annotations

from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate


def fit_probability(memory: MemoryEstimate, available_bytes: float) -> float:
    """Chance that no device needs more: that of the one that is least likely to fit, as all of a pipeline run one
    software and one allocator.

    What a device needs is taken to be distributed as a triangle: at least its tensors with what lies outside the allocator,
    most likely what the allocator usually reserves for them, at most all that may go wrong (`DeviceMemory.upper_bytes`).
    """
    return min(_device_probability(device, available_bytes) for device in memory.devices)


def _device_probability(device: DeviceMemory, available_bytes: float) -> float:
    room = available_bytes - device.context_bytes
    low, mode, high = device.allocated_bytes, device.reserved_bytes, device.upper_bytes
    if room >= high:
        return 1.0
    if room <= low:
        return 0.0
    width = high - low
    if room <= mode:
        return (room - low) ** 2 / (width * (mode - low))
    return 1.0 - (high - room) ** 2 / (width * (high - mode))
