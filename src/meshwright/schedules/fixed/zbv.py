"""ZB-V: two chunks a device in a V and a split backward; no bubble of a device's own at the memory of 1F1B."""

from __future__ import annotations

from meshwright.schedules.eager_order import eager_split_order
from meshwright.schedules.order import Orders, schedule
from meshwright.schedules.zigzag import zigzag


@schedule("zbv", num_chunks=2, is_exact=True, splits_backward=True)
def zbv(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """Stages s and 2p-1-s on device s; up to p activations a device, in chunks 2p.

    With equal F, I, W and m >= 2p - 1 no device idles between its first and its last compute; devices start and end one
    F of a chunk apart, so the span is 3m + (p - 1)/2 in units of a full stage. Source: Qi et al., arXiv 2401.10241.
    """
    device_of = zigzag(num_devices, num_chunks)
    return eager_split_order(device_of, num_devices, num_microbatches, num_chunks * num_devices)
