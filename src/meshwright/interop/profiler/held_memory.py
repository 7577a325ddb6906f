"""What allocators held while a rank was profiled, as curves of its device and of the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.interop.profiler.chrome_file import ChromeFile, MemoryPoint

Floats = NDArray[np.float64]
DEVICE, HOST = "device", "host"


class HeldMemory(NamedTuple):
    """``num_bytes[k]`` from ``times_s[k]`` on, seconds of the file."""

    times_s: Floats
    num_bytes: Floats

    def within(self, start_s: float, end_s: float) -> HeldMemory:
        """From what is held at a moment to what is held at another; the first that is known where that is later."""
        first, last = np.searchsorted(self.times_s, [start_s, end_s], side="right").tolist()
        before = self.num_bytes[max(0, first - 1)]
        times = np.concatenate([[start_s], self.times_s[first:last]])
        return HeldMemory(times, np.concatenate([[before], self.num_bytes[first:last]]))


def held_memory(file: ChromeFile) -> dict[str, HeldMemory]:
    """By tier; nothing where the profiler was not asked for it. The device of a file without one is the host itself."""
    on_host, elsewhere = (
        [point for point in file.memory if point.is_host is is_host] for is_host in (True, False)
    )
    tiers = {DEVICE: elsewhere, HOST: on_host} if elsewhere else {DEVICE: on_host}
    return {tier: _curve(points) for tier, points in tiers.items() if points}


def _curve(points: Sequence[MemoryPoint]) -> HeldMemory:
    """The sum over the devices of a process; of one that has said nothing yet it is not known, and counts as nothing."""
    held: dict[int, float] = {}
    sums = []
    for point in points:
        held[point.device] = point.num_bytes
        sums.append(sum(held.values()))
    return HeldMemory(np.array([point.at_s for point in points]), np.array(sums))
