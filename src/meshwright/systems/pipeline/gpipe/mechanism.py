"""A step of GPipe as a program; and the networks of its claims layer by layer, as torchgpipe's benchmarks cut them.

Seconds of ResNet-101 and AmoebaNet-D (18, 256), and bytes passed on, are for one image of 224 x 224 in float32: a roofline at
the numbers of the data sheet. A convolution takes its FLOPs or its bytes, whichever takes longer, everything else its bytes;
no efficiency is assumed, so only shares of a network's time and their relation to messages mean anything. Layers and
balances: kakaobrain/torchgpipe, benchmarks/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from meshwright.ir.core_vocabulary import F
from meshwright.ir.program import Program
from meshwright.ir.table import Duty, Work
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders, with_effects, with_works
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered

Checkpoint = Literal["never", "except_last", "always"]


@dataclass(frozen=True)
class RecomputeExceptLast:
    """Recompute every microbatch but the last: its backward follows its forward at once, so nothing would be saved."""

    name = "recompute_except_last"

    def __call__(self, program: Program) -> Program:
        """The program with R for all microbatches but the last."""
        program, (f,) = with_effects(Recompute()(program), F)
        c, t = program.columns, program.tables
        names = np.array([effect.name for effect in t.effects])[c.effect]
        last = c.microbatch == len(t.microbatches) - 1
        duties = tuple(Duty("R", "some") if duty.name == "R" else duty for duty in t.duties)
        program = program.with_tables(duties=duties).with_columns(
            effect=np.where(last & (names == "F"), f, c.effect)
        )
        rows = np.flatnonzero(~(last & (names == "R")))
        counts = np.bincount(program.list_of_row[rows], minlength=program.num_lists)
        return program.reordered(rows, np.concatenate([[0], np.cumsum(counts)]))


Pass = Callable[[Program], Program]
PASSES: Mapping[Checkpoint, tuple[Pass, ...]] = {
    "never": (),
    "except_last": (RecomputeExceptLast(),),
    "always": (Recompute(),),
}


def gpipe(
    num_partitions: int,
    num_microbatches: int,
    *,
    checkpoint: Checkpoint = "always",
    shares: Sequence[float] | None = None,
) -> Program:
    """One step of GPipe as a program, without the optimizer.

    Args:
        num_partitions, num_microbatches: the paper's K and M.
        checkpoint: which microbatches are recomputed; the paper recomputes all.
        shares: of the model's work, a stage each; equal without.
    """
    program = program_of_orders(registered()["gpipe"].orders(num_partitions, num_microbatches))
    for recompute in PASSES[checkpoint]:
        program = recompute(program)
    shares = shares or [1.0 / num_partitions] * num_partitions
    works = {
        (name, stage): Work(name, share=share / num_microbatches)
        for name in ("F", "R", "B")
        for stage, share in enumerate(shares)
    }
    return with_works(Transfers()(program), works)


# NVIDIA Tesla P40, data sheet: 12 TFLOP/s in single precision, 346 GB/s, PCIe 3.0 x16 (8 GT/s a lane, 128b/130b).
FLOPS_PER_S, BYTES_PER_S = 12e12, 346e9
LINK_BYTES_PER_S = 16 * 8e9 / 8 * 128 / 130
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


class Layer(NamedTuple):
    """Seconds of a forward, and bytes of all that later layers get from this one and those before it."""

    forward_s: float
    output_bytes: float


class Stages(NamedTuple):
    """Of every stage the seconds of a forward; of every boundary between two the bytes that cross it."""

    forward_s: tuple[float, ...]
    boundary_bytes: tuple[float, ...]


def cut(layers: Sequence[Layer], balance: Sequence[int]) -> Stages:
    """The stages of a balance, which has the number of layers of each."""
    assert sum(balance) == len(layers), "a balance is of all layers"
    ends = [sum(balance[: k + 1]) for k in range(len(balance))]
    seconds = [
        sum(layer.forward_s for layer in layers[end - size : end])
        for end, size in zip(ends, balance, strict=True)
    ]
    return Stages(tuple(seconds), tuple(layers[end - 1].output_bytes for end in ends[:-1]))


def data_bytes(channels: float, size: float) -> float:
    """Of `channels` maps of size x size."""
    return NUMBER_BYTES * channels * size * size


def passes_s(times: float, channels: float, size: float) -> float:
    """Seconds in which such data goes through memory so many times."""
    return times * data_bytes(channels, size) / BYTES_PER_S


def convolution_s(taken: float, made: float, area: int, size: float, made_size: float) -> float:
    """Seconds of a convolution with `area` weights a pair of channels."""
    flops = 2.0 * area * taken * made * made_size**2
    moved = data_bytes(taken, size) + data_bytes(made, made_size)
    return max(flops / FLOPS_PER_S, moved / BYTES_PER_S)


def resnet_101() -> list[Layer]:
    """The 370 layers: 4 in front, 33 bottlenecks of 11, 3 behind (He et al., arXiv 1512.03385, table 1)."""
    size = IMAGE_SIZE // 2
    half = data_bytes(64, size)
    layers = [
        Layer(convolution_s(3, 64, 49, IMAGE_SIZE, size), half),
        Layer(passes_s(NORM, 64, size), half),
        Layer(passes_s(RELU, 64, size), half),
        Layer(passes_s(1 + 1 / 4, 64, size), half / 4),
    ]
    taken, size = 64, size // 2
    for num_blocks, width, stride in ((3, 64, 1), (4, 128, 2), (23, 256, 2), (3, 512, 2)):
        for block in range(num_blocks):
            made_size = size // stride if block == 0 else size
            layers += _bottleneck(taken, width, size, made_size)
            taken, size = 4 * width, made_size
    behind = data_bytes(taken, 1)
    head_s = 2.0 * taken * NUM_CLASSES / FLOPS_PER_S
    return [*layers, Layer(passes_s(1, taken, size), behind), Layer(0.0, behind), Layer(head_s, 0.0)]


def _bottleneck(taken: int, width: int, size: int, made_size: int) -> list[Layer]:
    """11 layers. What came in is needed again at the sum, so it crosses every boundary before that, too."""
    kept, made = data_bytes(taken, size), 4 * width
    narrow, narrow_made, wide = (
        data_bytes(*shape) for shape in ((width, size), (width, made_size), (made, made_size))
    )
    shortcut = 0.0
    if made != taken:
        shortcut = convolution_s(taken, made, 1, size, made_size) + passes_s(NORM, made, made_size)
    return [
        Layer(0.0, kept + kept),
        Layer(convolution_s(taken, width, 1, size, size), kept + narrow),
        Layer(passes_s(NORM, width, size), kept + narrow),
        Layer(passes_s(RELU, width, size), kept + narrow),
        Layer(convolution_s(width, width, 9, size, made_size), kept + narrow_made),
        Layer(passes_s(NORM, width, made_size), kept + narrow_made),
        Layer(passes_s(RELU, width, made_size), kept + narrow_made),
        Layer(convolution_s(width, made, 1, made_size, made_size), kept + wide),
        Layer(passes_s(NORM, made, made_size), kept + wide),
        Layer(passes_s(ADD, made, made_size) + shortcut, wide),
        Layer(passes_s(RELU, made, made_size), wide),
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
        seconds = _relu_conv_norm_s(taken, self.channels, 1, size, size) + self._older_input_s()
        made_size = size / 2 if is_reduction else size
        for pair in REDUCTION if is_reduction else NORMAL:
            for state, name in pair:
                seconds += _operation_s(name, self.channels, size if state < 2 else made_size, made_size)
            seconds += passes_s(ADD, self.channels, made_size)
        made = self.channels * NUM_JOINED[is_reduction]
        seconds += passes_s(CONCATENATE, made, made_size)
        passed_on = data_bytes(made, made_size) + data_bytes(taken, size)
        self.before, self.last, self.was_reduced = self.last, (made, made_size), is_reduction
        self.layers.append(Layer(seconds, passed_on))

    def _older_input_s(self) -> float:
        """Seconds to bring the input from two cells before to this cell's width, and size."""
        taken, size = self.before
        if self.was_reduced:
            return _halving_s(taken, self.channels, size)
        return 0.0 if taken == self.channels else _relu_conv_norm_s(taken, self.channels, 1, size, size)


def amoebanet_d(num_cells: int = 18, num_filters: int = 256) -> list[Layer]:
    """The 24 layers: a convolution, two reductions, three groups of normal cells with reductions between, a classifier."""
    made, size = num_filters // 4, IMAGE_SIZE // 2
    first_s = passes_s(RELU, 3, IMAGE_SIZE) + convolution_s(3, made, 9, IMAGE_SIZE, size)
    net = AmoebaNet(made, (made, size), (made, size))
    net.layers.append(Layer(first_s + passes_s(NORM, made, size), data_bytes(made, size)))
    net.add_cell(is_reduction=True)
    for _group in range(3):
        net.add_cell(is_reduction=True)
        for _cell in range(num_cells // 3):
            net.add_cell(is_reduction=False)
    width, last_size = net.last
    head_s = passes_s(1, width, last_size) + 2.0 * width * NUM_CLASSES / FLOPS_PER_S
    return [*net.layers, Layer(head_s, 0.0)]


def _relu_conv_norm_s(taken: float, made: float, area: int, size: float, made_size: float) -> float:
    convolved = convolution_s(taken, made, area, size, made_size)
    return passes_s(RELU, taken, size) + convolved + passes_s(NORM, made, made_size)


def _halving_s(taken: float, made: float, size: float) -> float:
    """Two strided convolutions side by side that halve the size."""
    halves_s = sum(convolution_s(taken, made / 2, 1, size / 2, size / 2) for _half in range(2))
    return passes_s(RELU, taken, size) + halves_s + passes_s(CONCATENATE + NORM, made, size / 2)


def _operation_s(name: str, width: int, size: float, made_size: float) -> float:
    """An operation of a cell; one that does not keep the size has a stride."""
    if name == "none":
        return 0.0 if math.isclose(size, made_size) else _halving_s(width, width, size)
    if name == "pool":
        return (data_bytes(width, size) + data_bytes(width, made_size)) / BYTES_PER_S
    if name == "conv_1x1":
        return _relu_conv_norm_s(width, width, 1, size, made_size)
    narrow = width / 4
    inner = _relu_conv_norm_s(width, narrow, 1, size, size) + _relu_conv_norm_s(
        narrow, width, 1, made_size, made_size
    )
    if name == "conv_3x3":
        return inner + _relu_conv_norm_s(narrow, narrow, 9, size, made_size)
    along, across = (_relu_conv_norm_s(narrow, narrow, 7, at, made_size) for at in (size, made_size))
    return inner + along + across
