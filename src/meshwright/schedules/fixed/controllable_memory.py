"""V-Half and V-Min: a V of two chunks that repeats every six slots with a half and a third of the activations of 1F1B."""

from __future__ import annotations

from meshwright.schedules.order import Orders, schedule
from meshwright.schedules.repeating_pattern import Slots, order_of_pattern


@schedule("v_half", num_chunks=2, is_exact=True, splits_backward=True)
def v_half(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """Up to floor(p/2) + 1 activations a device: F down and I down take two slots a hop, F up and I up one.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362.
    """
    pattern = [_v_half_slots(device, num_devices) for device in range(num_devices)]
    return order_of_pattern(pattern, num_microbatches, splits_backward=True)


def _v_half_slots(i: int, p: int) -> Slots:
    """Starts of a microbatch on device i of p; the gap of three keeps them apart modulo six where p is even."""
    gap = 3 if p % 2 == 0 else 0
    return 2 * i, 3 * p - i - 2, 3 * p + gap + 2 * i - 1, 6 * p + gap - i - 2


@schedule("v_min", num_chunks=2, is_exact=True, splits_backward=True)
def v_min(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """Up to floor((p + 1)/3) + 1 activations a device: a microbatch goes down, up, down and up again one hop a slot.

    Slow where F, I and W differ: nothing is held back that could fill a gap.
    Source: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362.
    """
    pattern = [_v_min_slots(device, num_devices) for device in range(num_devices)]
    return order_of_pattern(pattern, num_microbatches, splits_backward=True)


def _v_min_slots(i: int, p: int) -> Slots:
    """Starts of a microbatch on device i of p; the gap of two keeps them apart modulo six where 3 divides p."""
    gap = 2 if p % 3 == 0 else 0
    return i, 2 * p - i - 1, 2 * p + gap + i, 4 * p + gap - i - 1
