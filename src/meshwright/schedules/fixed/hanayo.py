"""Waves: stages go down the devices and come back, several times, and whole backwards run as soon as they can."""

from __future__ import annotations

from meshwright.schedules.eager_order import eager_order
from meshwright.schedules.order import Orders, schedule
from meshwright.schedules.zigzag import zigzag


@schedule("hanayo", num_chunks=2, chunk_step=2)
def hanayo(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """w waves are 2w chunks a device; at most 2p microbatches are under way; a backward first, else a later chunk's forward.

    Made for m = p, where each further wave takes idle time away; with many more microbatches interleaved_1f1b is faster.
    Every turn of a wave stays on its device and costs no message. Source: the mechanism of Liu et al., Hanayo,
    arXiv 2308.15762; the order within a device is list scheduling with B = 2 F, ours.
    """
    return eager_order(zigzag(num_devices, num_chunks), num_devices, num_microbatches, 2 * num_devices)
