"""DualPipeV: a V of two chunks in which forwards and backwards of the two directions alternate in pairs."""

from __future__ import annotations

from meshwright.schedules.order import Compute, Orders, schedule


@schedule("dualpipe_v", num_chunks=2, is_exact=True, splits_backward=True, pairs="forward first")
def dualpipe_v(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Orders:
    """Eight phases; the main one pairs F of one chunk with I and W of the other, which communication can hide behind.

    Up to 2p + 1 chunk activations a device. Where m < 2p the order is that of 2p, less the microbatches that are not there.
    A whole backward is I with its W behind it. `dualpipe` is this with each device's second chunk working for microbatches
    that enter at the other end. Source: DeepSeek-V3 technical report, arXiv 2412.19437, folded in half.
    """
    p, whole = num_devices, max(num_microbatches, 2 * num_devices)
    orders = [paired_order((device, 2 * p - 1 - device), device, p, whole) for device in range(p)]
    if whole == num_microbatches:
        return orders
    return [[made for made in row if made.microbatch < num_microbatches] for row in orders]


class _Device:
    """The list of one device: chunks 0 and 1, each with its next forward and backward, and W kept for later."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.stages = stages
        self.order: list[Compute] = []
        self.next = {("F", 0): 0, ("F", 1): 0, ("I", 0): 0, ("I", 1): 0}
        self.kept: list[Compute] = []

    def take(self, name: str, chunk: int) -> Compute:
        """The next F or I of a chunk."""
        microbatch = self.next[name, chunk]
        self.next[name, chunk] += 1
        made = Compute(name, self.stages[chunk], microbatch)
        self.order.append(made)
        return made

    def backward(self, chunk: int, *, keeps_weights: bool = False) -> None:
        """I, and its W at once or later."""
        made = self.take("I", chunk)
        self.kept.append(Compute("W", made.stage, made.microbatch))
        if not keeps_weights:
            self.order.append(self.kept.pop())

    def weights(self) -> None:
        """The oldest W that was kept."""
        self.order.append(self.kept.pop(0))


def paired_order(stages: tuple[int, int], device: int, p: int, m: int) -> list[Compute]:
    """The list of device `device` of p between an end and the turn, with m >= 2p microbatches in each of its two chunks.

    `stages` are those of the chunks: 0 works towards the turn, 1 away from it. The phases are told by what repeats in them;
    `far` is larger on devices nearer to the end, `near` on those nearer to the turn.
    """
    far, near = p - device - 1, device + 1
    row = _Device(stages)
    for _ in range(2 * far):  # F0: fill
        row.take("F", 0)
    for _ in range(near):  # F0 F1
        row.take("F", 0)
        row.take("F", 1)
    for _ in range(far):  # I1 W1 F1
        row.backward(1)
        row.take("F", 1)
    for _ in range(m - 2 * p + near):  # F0 with B1, F1 with B0
        row.take("F", 0)
        row.backward(1)
        row.take("F", 1)
        row.backward(0)
    for _ in range(far):  # B1, F1 with B0
        row.backward(1)
        row.take("F", 1)
        row.backward(0)
    for k in range(near):  # B1 B0; the second half keeps its W for the drain
        row.backward(1, keeps_weights=2 * k >= near)
        row.backward(0, keeps_weights=2 * k + 1 >= near)
    for _ in range(far):  # W, I0
        row.weights()
        row.backward(0, keeps_weights=True)
    while row.kept:  # W: drain
        row.weights()
    return row.order
