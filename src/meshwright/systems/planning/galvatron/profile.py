"""What Galvatron measures before it plans: times and memory of a layer and of the ends, and of messages.

The repository keeps the same in JSON files, in ms and MB; here SI. "Ends" are embedding and language model head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.specs.error import SpecError

MIB = 2**20
MS = 1e-3
BYTES_PER_S = (
    MIB / MS
)  # bytes/s of one "GB/s" of the repository, which divides MB by it and reads milliseconds


@dataclass(frozen=True)
class EndMemory:
    """Bytes of embedding, head, or both: states without sharding, activations of one sample; tp divides both."""

    state_bytes: float
    activation_bytes: float


@dataclass(frozen=True)
class ModelProfile:
    """One kind of layer and the ends on one device, for samples of `sequence_length` tokens.

    Attributes:
        layer_forward_s, ends_forward_s: forward of one sample; backward is twice that by the model's rule.
        layer_parameter_bytes: float32 parameters of a layer.
        layer_activation_bytes: kept for backward by one sample.
        layer_checkpoint_bytes: kept by one sample where the layer is recomputed.
        ends, first, last: memory of both ends on one stage, of the embedding and of the head on two.
    """

    num_layers: int
    hidden_size: int
    sequence_length: int
    layer_forward_s: float
    ends_forward_s: float
    layer_parameter_bytes: float
    layer_activation_bytes: float
    layer_checkpoint_bytes: float
    ends: EndMemory
    first: EndMemory
    last: EndMemory

    @property
    def boundary_bytes(self) -> float:
        """Hidden states of one sample in 16 bits: what a gather moves for it."""
        return self.sequence_length * self.hidden_size * 2.0


@dataclass(frozen=True)
class MessageTimes:
    """Seconds by message size: as measured, else by the straight line fitted through all sizes."""

    measured_s: Mapping[float, float]
    slope_s: float
    intercept_s: float

    @classmethod
    def of(cls, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> MessageTimes:
        """From a sweep of at least two sizes."""
        slope_s, intercept_s = fit(sizes_bytes, times_s, 1)
        return cls(dict(zip(sizes_bytes, times_s, strict=True)), slope_s, intercept_s)

    def time_s(self, size_bytes: float) -> float:
        """Seconds of one message."""
        found = self.measured_s.get(size_bytes)
        return self.slope_s * size_bytes + self.intercept_s if found is None else found


@dataclass(frozen=True)
class HardwareProfile:
    """Messages between the devices of a job.

    Attributes:
        all_reduce_per_s: bytes/s by (degree, "consecutive ranks").
        send_per_s: bytes/s between stages by their number.
        all_gather, all_to_all: sweeps by degree.
        slowdown: of computation and message each while they overlap.
    """

    num_devices: int
    all_reduce_per_s: Mapping[tuple[int, bool], float]
    send_per_s: Mapping[int, float]
    all_gather: Mapping[int, MessageTimes]
    all_to_all: Mapping[int, MessageTimes]
    slowdown: float

    def reduce_s(self, size_bytes: float, degree: int, is_consecutive: bool) -> float:
        """Seconds to all-reduce; nothing for one device. A group of all devices has one bandwidth."""
        if degree == 1:
            return 0.0
        return size_bytes / self.all_reduce_per_s[degree, is_consecutive or degree == self.num_devices]


@dataclass(frozen=True)
class Job:
    """What is planned for: profiles, the batch and how it is cut, and the memory of a device.

    Attributes:
        schedule: "1f1b" keeps as many microbatches as stages follow, "gpipe" all.
        is_reduce_async: gradients are reduced after each microbatch, and nobody keeps them in float32.

    Raises SpecError where the batch or the devices do not divide.
    """

    model: ModelProfile
    hardware: HardwareProfile
    global_batch: int
    num_microbatches: int
    memory_bytes: int
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    is_reduce_async: bool = False

    def __post_init__(self) -> None:
        if self.num_microbatches < 1 or self.global_batch % self.num_microbatches:
            raise SpecError(
                f"a batch of {self.global_batch} samples in {self.num_microbatches} microbatches",
                allowed="a number of microbatches that divides the batch",
            )
        devices = self.hardware.num_devices
        if devices < 1 or devices & (devices - 1):
            raise SpecError(f"{devices} devices", allowed="a power of two: Galvatron halves groups")

    @property
    def microbatch_samples(self) -> int:
        """Samples of one microbatch over all replicas."""
        return self.global_batch // self.num_microbatches


def fit(x: Sequence[float], y: Sequence[float], degree: int) -> tuple[float, ...]:
    """Coefficients of the least-squares polynomial, highest power first; x is scaled for the solver's sake."""
    scale = max(x)
    coefficients = np.polyfit(np.asarray(x, dtype=float) / scale, np.asarray(y, dtype=float), degree)
    return tuple(float(c) / scale ** (degree - i) for i, c in enumerate(coefficients))


def value_at(x: float, coefficients: Sequence[float]) -> float:
    """A polynomial's value."""
    return float(np.polyval(coefficients, x))


# PKU-DAIR/Hetu-Galvatron, commit cea12ffb146a, tests/utils/search_configs.py (Apache License 2.0): Llama-2-7B sizes,
# eight devices of one node. Times of one sample in ms; sizes in MB at 8192 tokens; bandwidths in its GB/s.
SEQUENCES = (4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768)
LAYER_MS = (
    12.4057201385498, 28.454231262207003, 39.43479309082031, 52.60663909912111,
    70.75289154052746, 82.6971145629883, 106.13850097656245, 123.1998901367187,
)  # fmt: skip
ENDS_MS = (
    31.97360305786134, 56.27244796752933, 86.6235107421875, 121.2523483276367,
    141.90354614257797, 177.68662719726558, 197.4156311035157, 225.79444885253918,
)  # fmt: skip
SWEEP_MIB = tuple(2**i for i in range(11))
ALL_REDUCE_MS = {
    8: (0.07895, 0.1094, 0.1333, 0.1827, 0.2941, 0.4157, 0.6519, 1.2826, 2.3584, 4.6768, 8.1409),
    4: (0.07981, 0.09109, 0.1091, 0.1581, 0.2183, 0.3205, 0.5848, 1.0725, 2.0709, 3.7352, 7.1874),
    2: (0.0703, 0.07932, 0.09008, 0.1084, 0.1434, 0.2281, 0.3924, 0.7417, 1.3887, 2.6886, 5.1594),
}
ALL_TO_ALL_MS = {
    8: (0.1124, 0.1135, 0.1109, 0.1502, 0.2003, 0.243, 0.3997, 0.7135, 1.2981, 2.4822, 4.8151),
    4: (0.05244, 0.07992, 0.1065, 0.1255, 0.1514, 0.2237, 0.3654, 0.6439, 1.1567, 2.1003, 4.0389),
    2: (0.0709, 0.09942, 0.1101, 0.1047, 0.1203, 0.1788, 0.2928, 0.4756, 0.8806, 1.7752, 3.4954),
}
ALL_REDUCE = {
    (8, True): 160.445,
    (4, True): 164.272,
    (4, False): 165.493,
    (2, True): 155.647,
    (2, False): 153.933,
}
SEND = {2: 147.32, 4: 133.469, 8: 108.616}
SLOWDOWN = 1.1534195950157762
GATHER_SHARE = 0.5  # of an all-reduce's time: it is a scatter and a gather
TEST_SEQUENCE, TEST_LAYERS, TEST_HIDDEN = 8192, 28, 4096


def published_model() -> ModelProfile:
    """The model of the repository's test of its search."""
    layer = value_at(TEST_SEQUENCE, fit(SEQUENCES, LAYER_MS, 2))
    ends = value_at(TEST_SEQUENCE, fit(SEQUENCES, ENDS_MS, 1))
    return ModelProfile(
        num_layers=TEST_LAYERS,
        hidden_size=TEST_HIDDEN,
        sequence_length=TEST_SEQUENCE,
        layer_forward_s=layer * MS,
        ends_forward_s=ends * MS,
        layer_parameter_bytes=973.771484375 * MIB,  # of the shortest profiled sequence, 512
        layer_activation_bytes=2088.28955078125 * MIB,
        layer_checkpoint_bytes=56.0 * MIB,
        ends=EndMemory(16768.54296875 * MIB, 5487.8828125 * MIB),
        first=EndMemory(8351.5009765625 * MIB, 787.1483154296875 * MIB),
        last=EndMemory(8351.5556640625 * MIB, 5073.4478759765625 * MIB),
    )


def published_hardware() -> HardwareProfile:
    """The eight devices of that test."""
    sizes = [float(size * MIB) for size in SWEEP_MIB]
    return HardwareProfile(
        num_devices=8,
        all_reduce_per_s={key: value * BYTES_PER_S for key, value in ALL_REDUCE.items()},
        send_per_s={key: value * BYTES_PER_S for key, value in SEND.items()},
        all_gather={
            degree: MessageTimes.of(sizes, [time * MS * GATHER_SHARE for time in times])
            for degree, times in ALL_REDUCE_MS.items()
        },
        all_to_all={
            degree: MessageTimes.of(sizes, [time * MS for time in times])
            for degree, times in ALL_TO_ALL_MS.items()
        },
        slowdown=SLOWDOWN,
    )


def published_job(num_microbatches: int, global_batch: int = 64, memory_gib: int = 36) -> Job:
    """The job of that test, which the repository runs with 32 and with 8 microbatches."""
    return Job(published_model(), published_hardware(), global_batch, num_microbatches, memory_gib * 2**30)
