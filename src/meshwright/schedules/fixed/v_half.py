"""V-Half: a V of two chunks that repeats every six slots with half the activations of 1F1B."""

from __future__ import annotations

from meshwright.schedules.order import Orders, schedule
from meshwright.schedules.repeating_pattern import Slots, order_of_pattern


@schedule("v_half", num_chunks=2, is_exact=True, splits_backward=True)
def v_half(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """Up to floor(p/2) + 1 activations a device: F down and I down take two slots a hop, F up and I up one.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362.
    """
    pattern = [_slots(device, num_devices) for device in range(num_devices)]
    return order_of_pattern(pattern, num_microbatches, splits_backward=True)


def _slots(i: int, p: int) -> Slots:
    """Starts of a microbatch on device i of p; the gap of three keeps them apart modulo six where p is even."""
    gap = 3 if p % 2 == 0 else 0
    return 2 * i, 3 * p - i - 2, 3 * p + gap + 2 * i - 1, 6 * p + gap - i - 2
