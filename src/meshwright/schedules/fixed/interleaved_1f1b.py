"""Interleaved 1F1B: v chunks a device, visited in rounds of p microbatches; the bubble shrinks by v."""

from __future__ import annotations

from meshwright.schedules.order import Compute, Orders, schedule


@schedule("interleaved_1f1b", num_chunks=2, pairs="backward first")
def interleaved_1f1b(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """1F1B on v chunks a device in loops of p microbatches. Idle a device (p-1)(F+B)/v where p divides m.

    Any m >= 1 is accepted: the order is that of m rounded up to a multiple of p, less the microbatches that are not
    there, so it is never slower than the rounded one. Source: Narayanan et al., arXiv 2104.04473.
    """
    rounded = -(-num_microbatches // num_devices) * num_devices
    return [
        [c for c in _one_device(device, num_devices, rounded, num_chunks) if c.microbatch < num_microbatches]
        for device in range(num_devices)
    ]


def _one_device(device: int, num_devices: int, num_microbatches: int, num_chunks: int) -> list[Compute]:
    total = num_microbatches * num_chunks
    # Every device runs one forward further ahead than the dependency asks for (2 instead of 1 a hop): the first backward
    # of a microbatch must come back through all devices before this one may go on.
    warmup = min(2 * (num_devices - device - 1) + (num_chunks - 1) * num_devices, total)

    def compute(name: str, k: int) -> Compute:
        chunk = k % (num_devices * num_chunks) // num_devices
        microbatch = k // (num_devices * num_chunks) * num_devices + k % num_devices
        place = chunk if name == "F" else num_chunks - 1 - chunk
        return Compute(name, place * num_devices + device, microbatch)

    order = [compute("F", k) for k in range(warmup)]
    for k in range(total - warmup):
        order += [compute("F", warmup + k), compute("B", k)]
    return order + [compute("B", k) for k in range(total - warmup, total)]
