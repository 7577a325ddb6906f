"""The paper's layer on A100 with a NIC each: dense or fast kernels, linear or two-level all-to-alls, and parts."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.systems.moe.tutel.mechanism import PART_DEGREES

# Azure NDm A100 v4: eight A100-80 a node, 312 TFLOP/s dense in 16 bits, 2.0 TB/s, NVLink 300 GB/s each way, a NIC of 200 Gb/s
# each.
NODE, FLOPS_PER_S, MEMORY_BYTES_PER_S = 8, 312e12, 2.0e12
NODE_BYTES_PER_S, NIC_BYTES_PER_S = 300e9, 25e9
MESSAGE_S = 5e-6  # to begin one message: this package's latency of a link between nodes
TOKENS, WIDTH, HIDDEN, EXPERTS_PER_DEVICE, TOP_K, BYTES = 16384, 2048, 2048, 2, 2, 2
EFFICIENCY = 0.7  # of a large product, and of links
LEAST_ROWS = 128  # a product of fewer rows takes as long as one of so many: a tile's


class Kernels(NamedTuple):
    """Which of the four parts a layer has."""

    is_fast: bool = False
    is_two_level: bool = False
    is_flexible: bool = False
    parts: int = 1


FAIRSEQ = Kernels()
PARTS = {
    "kernels": Kernels(True),
    "two-level all-to-all": Kernels(True, True),
    "flexible all-to-all": Kernels(True, True, True),
    "pipelining": Kernels(True, True, True, 2),
}


def linear_s(devices: int, num_bytes: float) -> float:
    """One message to every other device, each of S / n bytes, those to other nodes over the NIC."""
    within, beyond = min(NODE, devices) - 1, max(0, devices - NODE)
    each = num_bytes / devices
    inside_s = within * (each / (EFFICIENCY * NODE_BYTES_PER_S) + MESSAGE_S)
    return max(inside_s, beyond * (each / (EFFICIENCY * NIC_BYTES_PER_S) + MESSAGE_S))


def two_level_s(devices: int, num_bytes: float) -> float:
    """Two copies that align by destination, an exchange in the node, and messages of m S / n bytes to the other nodes."""
    nodes = max(1, devices // NODE)
    copies_s = 2 * 2 * num_bytes / (EFFICIENCY * MEMORY_BYTES_PER_S)
    within_s = (NODE - 1) * (num_bytes / NODE / (EFFICIENCY * NODE_BYTES_PER_S) + MESSAGE_S)
    between_s = (nodes - 1) * (num_bytes / nodes / (EFFICIENCY * NIC_BYTES_PER_S) + MESSAGE_S)
    return copies_s + within_s + between_s


def exchange_s(devices: int, kernels: Kernels, num_bytes: float) -> float:
    """An all-to-all: with both, whichever is faster."""
    if kernels.is_two_level:
        return min(linear_s(devices, num_bytes), two_level_s(devices, num_bytes))
    return linear_s(devices, num_bytes)


def coded_s(kernels: Kernels) -> float:
    """Tokens to their slots, and back: a product with a matrix of T x (E C), or rows that are read and written."""
    slots = TOP_K * TOKENS
    if kernels.is_fast:
        return 2 * 2 * slots * WIDTH * BYTES / (EFFICIENCY * MEMORY_BYTES_PER_S)
    return 2 * 2.0 * TOKENS * slots * WIDTH / (EFFICIENCY * FLOPS_PER_S)


def expert_s(devices: int, kernels: Kernels) -> float:
    """Two products of each local expert: one for the rows of all devices, or one for the rows of each."""
    rows, products = TOP_K * TOKENS // EXPERTS_PER_DEVICE, 1
    if not kernels.is_flexible:
        rows, products = max(LEAST_ROWS, rows // devices), devices
    flops = 2 * 2.0 * EXPERTS_PER_DEVICE * products * rows * WIDTH * HIDDEN
    return flops / (EFFICIENCY * FLOPS_PER_S)


def layer_s(devices: int, kernels: Kernels) -> float:
    """A forward: coded, sent, computed, sent back; in parts the exchanges run beside experts."""
    parts = kernels.parts
    sent_s = exchange_s(devices, kernels, TOP_K * TOKENS * WIDTH * BYTES / parts)
    computed_s = expert_s(devices, kernels) / parts
    return coded_s(kernels) + max(2 * parts * sent_s, 2 * sent_s + parts * computed_s)


def gain(devices: int, part: str) -> float:
    """What a part gains over the layer that has the parts before it, in the order of `PARTS`; all: of Tutel over Fairseq."""
    times = [
        min(layer_s(devices, kernels._replace(parts=each)) for each in (PART_DEGREES if kernels.parts > 1 else (1,)))
        for kernels in (FAIRSEQ, *PARTS.values())
    ]  # fmt: skip
    if part == "all":
        return times[0] / times[-1]
    place = list(PARTS).index(part)
    return times[place] / times[place + 1]
