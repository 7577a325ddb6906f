"""Breadth-first interleaving: v chunks a device, each for all microbatches before the next chunk begins."""

from __future__ import annotations

from meshwright.schedules.order import Compute, Orders, schedule


@schedule("breadth_first", num_chunks=2)
def breadth_first(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """All microbatches through a chunk, then the next; backwards the same from the last chunk; keeps all m activations.

    Idle a device (p-1)(F+B)/v where m >= p. A chunk's parameters are needed once forward and once backward, so sharded
    ones are gathered v times and not v m times. Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953.
    """
    microbatches, chunks = range(num_microbatches), range(num_chunks)
    return [
        [Compute("F", chunk * num_devices + device, m) for chunk in chunks for m in microbatches]
        + [Compute("B", chunk * num_devices + device, m) for chunk in reversed(chunks) for m in microbatches]
        for device in range(num_devices)
    ]
