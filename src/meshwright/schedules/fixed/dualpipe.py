"""DualPipe: microbatches enter at both ends, every stage stands on two devices, forwards pair with backwards."""

from __future__ import annotations

from meshwright.schedules.fixed.dualpipe_v import paired_order
from meshwright.schedules.order import Compute, Orders, schedule


@schedule("dualpipe", splits_backward=True, device_step=2, num_copies=2, pairs="forward first")
def dualpipe(num_devices: int, num_microbatches: int) -> Orders:
    """Half of the microbatches enter at either end; every stage stands, with its parameters, on two devices.

    The first half goes down the devices 0 .. p-1, the second half up: device d works on stage d for one stream and on stage
    p-1-d for the other, so parameters, gradients and optimizer state are there twice. Device d and its mirror p-1-d run the
    same list with the streams exchanged, which is that of `dualpipe_v` on p/2 devices. With F = I = W and an even m >= 2p
    a device idles (p/2-1) F and keeps up to p + 1 activations. Where m < 2p the order is that of 2p, less the microbatches
    that are not there; of an odd number the first stream has one more.
    Source: DeepSeek-V3 technical report, arXiv 2412.19437.
    """
    p, half = num_devices, num_devices // 2
    num_down = (num_microbatches + 1) // 2
    first_of = {"down": 0, "up": num_down}
    num_of = {"down": num_down, "up": num_microbatches - num_down}
    orders: Orders = []
    for device in range(p):
        near = min(device, p - 1 - device)  # devices to the nearer end
        stages = (near, p - 1 - near)
        streams = ("down", "up") if device < half else ("up", "down")
        stream_of = dict(zip(stages, streams, strict=True))
        orders.append(
            [
                Compute(name, stage, first_of[stream_of[stage]] + microbatch)
                for name, stage, microbatch in paired_order(stages, near, half, max(num_down, p))
                if microbatch < num_of[stream_of[stage]]
            ]
        )
    return orders
