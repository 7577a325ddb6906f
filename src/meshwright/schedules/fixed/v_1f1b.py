"""V-1F1B: a V of two chunks with whole backwards and two thirds of the activations of 1F1B."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.schedules.order import Orders, schedule
from meshwright.schedules.repeating_pattern import PERIOD, Slots, order_of_pattern


@schedule("v_1f1b", num_chunks=2, is_exact=True)
def v_1f1b(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """Up to floor(2p/3) + 1 activations a device: one microbatch placed as early as six slots a device allow, and repeated.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362 (the shape; its slots are ours).
    """
    return order_of_pattern(_pattern(num_devices), num_microbatches, splits_backward=False)


def _pattern(num_devices: int) -> list[Slots]:
    """Starts of a microbatch on every device: F down, F up (one slot), B down, B up (two), each as early as it may be."""
    free = [frozenset(range(PERIOD)) for _ in range(num_devices)]
    down, up = range(num_devices), range(num_devices - 1, -1, -1)
    starts = [[0] * num_devices for _ in range(4)]
    slot = 0
    for visit, devices in enumerate((down, up, down, up)):
        length = 1 if visit < 2 else 2
        for device in devices:
            slot = _earliest(slot, length, free[device], 2 if visit == 1 else visit == 2)
            free[device] -= {(slot + k) % PERIOD for k in range(length)}
            starts[visit][device] = slot
            slot += length
    return list(zip(*starts, strict=True))


def _earliest(slot: int, length: int, free: frozenset[int], pairs_left: int) -> int:
    """The first slot that is free in every period and leaves as many pairs of neighbours for what comes later."""
    while True:
        taken = {(slot + k) % PERIOD for k in range(length)}
        if taken <= free and _num_pairs(free - taken) >= pairs_left:
            return slot
        slot += 1


def _num_pairs(free: Iterable[int]) -> int:
    """How many pairs of neighbouring slots of the cycle are disjoint."""
    found = 0
    for first in (0, 1):
        left = set(free)
        pairs = 0
        for slot in (*range(first, PERIOD), *range(first)):
            if {slot, (slot + 1) % PERIOD} <= left:
                left -= {slot, (slot + 1) % PERIOD}
                pairs += 1
        found = max(found, pairs)
    return found
