"""ResNet-101 and AmoebaNet-D layer by layer, as torchgpipe's benchmarks cut them, and the chips that run them.

FLOPs and bytes of every kernel, and bytes passed on, are for one image of 224 x 224 in float32. Seconds are a roofline at the
numbers of the data sheet: a kernel takes its FLOPs or its bytes, whichever takes longer; no efficiency is assumed, so only
shares of a network's time and their relation to messages mean anything. Layers, balances: kakaobrain/torchgpipe, benchmarks/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class ImageChip:
    """What a roofline knows of an accelerator, by its data sheet."""

    flops_per_s: float
    bytes_per_s: float


P40 = ImageChip(12e12, 346e9)  # NVIDIA Tesla P40: 12 TFLOP/s in single precision, 346 GB/s
P100 = ImageChip(9.3e12, 732e9)  # NVIDIA Tesla P100 for PCIe, the one without NVLink
TPU_V2_CORE = ImageChip(
    23e12, 350e9
)  # half of a chip of 46 TFLOP/s and 700 GB/s (cloud.google.com/tpu/docs/v2)
LINK_BYTES_PER_S = 16 * 8e9 / 8 * 128 / 130  # PCIe 3.0 x16: 8 GT/s a lane, 128b/130b
NUMBER_BYTES, IMAGE_SIZE, NUM_CLASSES = 4, 224, 1000
# Times that data goes through memory: batch normalisation reads twice (mean and variance, then values) and writes.
NORM, RELU, ADD, CONCATENATE = 3, 2, 3, 2
# Layers of every stage. n: benchmarks/resnet101-speed; (n, m): benchmarks/amoebanetd-speed.
RESNET_BALANCES = {
    1: (370,),
    2: (135, 235),
    4: (44, 92, 124, 110),
    8: (26, 22, 33, 44, 44, 66, 66, 69),
}
AMOEBANET_BALANCES = {
    (2, 1): (7, 17),
    (2, 4): (9, 15),
    (2, 32): (9, 15),
    (4, 1): (3, 4, 5, 12),
    (4, 4): (3, 6, 7, 8),
    (4, 32): (3, 6, 7, 8),
    (8, 1): (2, 2, 2, 2, 2, 3, 4, 7),
    (8, 4): (2, 2, 2, 3, 3, 4, 4, 4),
    (8, 32): (2, 2, 2, 3, 3, 4, 4, 4),
}


class Kernel(NamedTuple):
    """What one kernel computes, and moves through memory."""

    flops: float
    moved_bytes: float


Kernels = tuple[Kernel, ...]


class Layer(NamedTuple):
    """Kernels of a forward, and bytes of all that later layers get from this one and those before it."""

    kernels: Kernels
    output_bytes: float

    @property
    def flops(self) -> float:
        """Of a forward."""
        return sum(kernel.flops for kernel in self.kernels)

    def forward_s(self, chip: ImageChip) -> float:
        """Seconds of a forward."""
        return sum(
            max(each.flops / chip.flops_per_s, each.moved_bytes / chip.bytes_per_s) for each in self.kernels
        )


class Stages(NamedTuple):
    """Of every stage the seconds of a forward; of every boundary between two the bytes that cross it."""

    forward_s: tuple[float, ...]
    boundary_bytes: tuple[float, ...]


def cut(layers: Sequence[Layer], balance: Sequence[int], chip: ImageChip) -> Stages:
    """The stages of a balance, which has the number of layers of each."""
    assert sum(balance) == len(layers), "a balance is of all layers"
    ends = [sum(balance[: k + 1]) for k in range(len(balance))]
    seconds = [
        sum(layer.forward_s(chip) for layer in layers[end - size : end])
        for end, size in zip(ends, balance, strict=True)
    ]
    return Stages(tuple(seconds), tuple(layers[end - 1].output_bytes for end in ends[:-1]))


def data_bytes(channels: float, size: float) -> float:
    """Of `channels` maps of size x size."""
    return NUMBER_BYTES * channels * size * size


def passes(times: float, channels: float, size: float) -> Kernels:
    """Such data goes through memory so many times."""
    return (Kernel(0.0, times * data_bytes(channels, size)),)


def convolution(taken: float, made: float, area: int, size: float, made_size: float) -> Kernels:
    """A convolution with `area` weights a pair of channels."""
    moved = data_bytes(taken, size) + data_bytes(made, made_size)
    return (Kernel(2.0 * area * taken * made * made_size**2, moved),)


def resnet_101() -> list[Layer]:
    """The 370 layers: 4 in front, 33 bottlenecks of 11, 3 behind (He et al., arXiv 1512.03385, table 1)."""
    size = IMAGE_SIZE // 2
    half = data_bytes(64, size)
    layers = [
        Layer(convolution(3, 64, 49, IMAGE_SIZE, size), half),
        Layer(passes(NORM, 64, size), half),
        Layer(passes(RELU, 64, size), half),
        Layer(passes(1 + 1 / 4, 64, size), half / 4),
    ]
    taken, size = 64, size // 2
    for num_blocks, width, stride in ((3, 64, 1), (4, 128, 2), (23, 256, 2), (3, 512, 2)):
        for block in range(num_blocks):
            made_size = size // stride if block == 0 else size
            layers += _bottleneck(taken, width, size, made_size)
            taken, size = 4 * width, made_size
    behind = data_bytes(taken, 1)
    head = (Kernel(2.0 * taken * NUM_CLASSES, 0.0),)
    return [*layers, Layer(passes(1, taken, size), behind), Layer((), behind), Layer(head, 0.0)]


def _bottleneck(taken: int, width: int, size: int, made_size: int) -> list[Layer]:
    """11 layers. What came in is needed again at the sum, so it crosses every boundary before that, too."""
    kept, made = data_bytes(taken, size), 4 * width
    narrow, narrow_made, wide = (
        data_bytes(*shape) for shape in ((width, size), (width, made_size), (made, made_size))
    )
    shortcut: Kernels = ()
    if made != taken:
        shortcut = convolution(taken, made, 1, size, made_size) + passes(NORM, made, made_size)
    return [
        Layer((), kept + kept),
        Layer(convolution(taken, width, 1, size, size), kept + narrow),
        Layer(passes(NORM, width, size), kept + narrow),
        Layer(passes(RELU, width, size), kept + narrow),
        Layer(convolution(width, width, 9, size, made_size), kept + narrow_made),
        Layer(passes(NORM, width, made_size), kept + narrow_made),
        Layer(passes(RELU, width, made_size), kept + narrow_made),
        Layer(convolution(width, made, 1, made_size, made_size), kept + wide),
        Layer(passes(NORM, made, made_size), kept + wide),
        Layer(passes(ADD, made, made_size) + shortcut, wide),
        Layer(passes(RELU, made, made_size), wide),
    ]


# Cells of AmoebaNet-D (Real et al., arXiv 1802.01548): pairs of (state that is read, operation), and states that go out.
NORMAL = (
    ((1, "conv_1x1"), (1, "pool")), ((1, "none"), (0, "conv_1x7_7x1")), ((0, "conv_1x1"), (0, "conv_1x7_7x1")),
    ((2, "pool"), (2, "none")), ((1, "pool"), (5, "conv_1x1")),
)  # fmt: skip
REDUCTION = (
    ((0, "pool"), (0, "pool")), ((2, "none"), (1, "conv_3x3")), ((2, "conv_1x7_7x1"), (2, "pool")),
    ((3, "none"), (1, "pool")), ((2, "pool"), (3, "conv_1x1")),
)  # fmt: skip
NUM_JOINED = {False: 4, True: 3}  # states that a normal and a reduction cell put together


@dataclass
class AmoebaNet:
    """The layers of AmoebaNet-D while they are made: channels, and channels and size of the last two outputs."""

    channels: int
    before: tuple[int, float] = (0, 0)
    last: tuple[int, float] = (0, 0)
    was_reduced: bool = False
    layers: list[Layer] = field(default_factory=list)

    def add_cell(self, is_reduction: bool) -> None:
        """One cell: both inputs are brought to its width, five sums of two operations, some of them put together."""
        self.channels *= 2 if is_reduction else 1
        taken, size = self.last
        kernels = _relu_conv_norm(taken, self.channels, 1, size, size) + self._older_input()
        made_size = size / 2 if is_reduction else size
        for pair in REDUCTION if is_reduction else NORMAL:
            for state, name in pair:
                kernels += _operation(name, self.channels, size if state < 2 else made_size, made_size)
            kernels += passes(ADD, self.channels, made_size)
        made = self.channels * NUM_JOINED[is_reduction]
        kernels += passes(CONCATENATE, made, made_size)
        passed_on = data_bytes(made, made_size) + data_bytes(taken, size)
        self.before, self.last, self.was_reduced = self.last, (made, made_size), is_reduction
        self.layers.append(Layer(kernels, passed_on))

    def _older_input(self) -> Kernels:
        """What brings the input from two cells before to this cell's width, and size."""
        taken, size = self.before
        if self.was_reduced:
            return _halving(taken, self.channels, size)
        return () if taken == self.channels else _relu_conv_norm(taken, self.channels, 1, size, size)


def amoebanet_d(num_cells: int = 18, num_filters: int = 256) -> list[Layer]:
    """The 24 layers: a convolution, two reductions, three groups of normal cells with reductions between, a classifier."""
    made, size = num_filters // 4, IMAGE_SIZE // 2
    first = passes(RELU, 3, IMAGE_SIZE) + convolution(3, made, 9, IMAGE_SIZE, size)
    net = AmoebaNet(made, (made, size), (made, size))
    net.layers.append(Layer(first + passes(NORM, made, size), data_bytes(made, size)))
    net.add_cell(is_reduction=True)
    for _group in range(3):
        net.add_cell(is_reduction=True)
        for _cell in range(num_cells // 3):
            net.add_cell(is_reduction=False)
    width, last_size = net.last
    head = (*passes(1, width, last_size), Kernel(2.0 * width * NUM_CLASSES, 0.0))
    return [*net.layers, Layer(head, 0.0)]


def _relu_conv_norm(taken: float, made: float, area: int, size: float, made_size: float) -> Kernels:
    convolved = convolution(taken, made, area, size, made_size)
    return passes(RELU, taken, size) + convolved + passes(NORM, made, made_size)


def _halving(taken: float, made: float, size: float) -> Kernels:
    """Two strided convolutions side by side that halve the size."""
    one, other = (convolution(taken, made / 2, 1, size / 2, size / 2) for _half in range(2))
    return passes(RELU, taken, size) + one + other + passes(CONCATENATE + NORM, made, size / 2)


def _operation(name: str, width: int, size: float, made_size: float) -> Kernels:
    """An operation of a cell; one that does not keep the size has a stride."""
    if name == "none":
        return () if math.isclose(size, made_size) else _halving(width, width, size)
    if name == "pool":
        return (Kernel(0.0, data_bytes(width, size) + data_bytes(width, made_size)),)
    if name == "conv_1x1":
        return _relu_conv_norm(width, width, 1, size, made_size)
    narrow = width / 4
    inner = _relu_conv_norm(width, narrow, 1, size, size) + _relu_conv_norm(
        narrow, width, 1, made_size, made_size
    )
    if name == "conv_3x3":
        return inner + _relu_conv_norm(narrow, narrow, 9, size, made_size)
    along, across = (_relu_conv_norm(narrow, narrow, 7, at, made_size) for at in (size, made_size))
    return inner + along + across
