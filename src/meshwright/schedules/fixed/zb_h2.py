"""ZB-H2: the backward is split, and twice the warm-up of 1F1B leaves no device a bubble of its own."""

from __future__ import annotations

from meshwright.schedules.eager_order import eager_split_order
from meshwright.schedules.order import Orders, schedule


@schedule("zb_h2", splits_backward=True)
def zb_h2(num_devices: int, num_microbatches: int) -> Orders:
    """Up to 2p activations a device, so that forwards fill the wait for the first backward and W the drain.

    With F = I = W and m >= 2p - 1 no device idles between its first and its last compute; devices start and end one F
    apart, so the span is 3m + p - 1. Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241.
    """
    return eager_split_order(
        range(num_devices), num_devices, num_microbatches, 2 * num_devices, inputs_first=True
    )
