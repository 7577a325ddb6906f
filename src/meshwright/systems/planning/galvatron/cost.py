"""What Galvatron measures, how it may spread a layer, and its cost model: seconds and bytes of a layer, the ends, a pipeline.

The repository keeps profiles in JSON files, in ms and MB; here SI. "Ends" are embedding and language model head. A layer's
backward takes twice its forward, and once more where it is recomputed. Times are of one microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.error import SpecError

Floats = NDArray[np.float64]
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
class ProfiledJob:
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


Sharding = Literal["none", "zero2", "zero3"]


@dataclass(frozen=True, order=True)
class Strategy:
    """How one layer is spread: stages of the pipeline, tensor or Ulysses degree, replicas, sharding, recompute.

    Ordered field by field, as the repository orders its candidates: among equals the first one is taken.
    """

    pp: int
    tp: int
    sp: int
    dp: int
    sharding: Sharding = "none"
    is_recomputed: bool = False

    @property
    def width(self) -> int:
        """Devices that share the work of one sample: the tensor degree or the Ulysses degree."""
        return max(self.tp, self.sp)

    @property
    def replicas(self) -> int:
        """Devices with the same parameters: data parallel and Ulysses, over which gradients are reduced."""
        return self.dp * self.sp

    def __str__(self) -> str:
        """As the repository writes it: "1-4*-2f-c" is one stage, degree 4, two replicas in ZeRO-3, recomputed."""
        width = f"{self.width}*" if self.width > 1 else "1"
        zero3, recomputed = "f" * (self.sharding == "zero3"), "-c" * self.is_recomputed
        return f"{self.pp}-{width}-{self.dp}{zero3}{recomputed}{'-sp' * (self.sp > 1)}"


Candidates = tuple[Strategy, ...]


BACKWARD_OVER_FORWARD = 2.0
NUM_GATHERS, NUM_ALL_TO_ALLS = 6, 4  # of a layer, forward and backward: tensor parallel, and Ulysses
RECOMPUTE_GATHERS = 1.5  # recomputing repeats the messages of the forward: half as many again
STATES_PER_PARAMETER = 4.0  # float32: parameter, gradient, two moments of Adam
UNSHARDED_SHARE = 0.003  # of the states: what sharding leaves on every device beside 1/d
ACCUMULATION = 1.25  # one more float32 gradient where microbatches accumulate before they reduce
CONTEXT_BYTES = 1024 * 2**20  # of the framework, on every device
RESHARD_WEIGHT = 104.8576  # 1e-7 x bytes / (GB/s) of the repository, in units of bytes over bytes/s


def overlapped_s(compute_s: float, message_s: float, slowdown: float) -> float:
    """Seconds of both where each is slowed down while the other runs, and the longer one ends alone."""
    return slowdown * min(compute_s, message_s) + abs(compute_s - message_s)


def behind_message_s(compute_s: float, message_s: float, slowdown: float) -> float:
    """The rule for the ends: a message hides computation that is slowed down; the message is not."""
    if compute_s * slowdown <= message_s:
        return message_s
    return message_s + (compute_s * slowdown - message_s) / slowdown


def samples_per_device(job: ProfiledJob, strategy: Strategy) -> int:
    """Samples of a microbatch for one replica."""
    return job.microbatch_samples // strategy.dp


def layer_s(job: ProfiledJob, strategy: Strategy, *, is_reducing: bool = True) -> float:
    """Seconds of one layer for one microbatch, with or without the reduction of its gradient."""
    total_s = sum(layer_passes_s(job, strategy, is_reducing=is_reducing))
    if strategy.pp > 1:
        # Once for all layers of the model, so a layer has its share of it.
        sent = strategy.pp * 2 * samples_per_device(job, strategy) * job.model.boundary_bytes
        total_s += sent / job.hardware.send_per_s[strategy.pp] / job.model.num_layers
    return total_s


def layer_passes_s(job: ProfiledJob, strategy: Strategy, *, is_reducing: bool = True) -> tuple[float, float]:
    """Seconds of a layer forward and backward without what is sent between stages.

    The model has the sum of both; here half of a layer's exchanges that recompute does not add belong to the forward, and
    so does the gather of ZeRO-3.
    """
    model, hardware, samples = job.model, job.hardware, samples_per_device(job, strategy)
    forward_s = model.layer_forward_s * samples / strategy.width
    backward_s = forward_s * (BACKWARD_OVER_FORWARD + strategy.is_recomputed)
    d = strategy.replicas
    message = 2 * (d - 1) / d * model.layer_parameter_bytes / strategy.tp / 2  # in 16 bits
    reduce_s = hardware.reduce_s(message, d, strategy.tp == 1)
    if strategy.dp > 1:
        backward_s = overlapped_s(backward_s, reduce_s if is_reducing else 0.0, hardware.slowdown)
    messages_s = _inner_messages_s(job, strategy)
    ahead_s = messages_s / 2 / (RECOMPUTE_GATHERS if strategy.is_recomputed else 1.0)
    # one gather of the parameters, hidden behind nothing
    gather_s = reduce_s / 2 if strategy.sharding == "zero3" else 0.0
    return forward_s + ahead_s + gather_s, backward_s + messages_s - ahead_s


def _inner_messages_s(job: ProfiledJob, strategy: Strategy) -> float:
    """Gathers of tensor parallelism with sequence parallelism, or the all-to-alls of Ulysses."""
    if strategy.width == 1:
        return 0.0
    by_size = job.hardware.all_gather if strategy.tp > 1 else job.hardware.all_to_all
    count = (NUM_GATHERS if strategy.tp > 1 else NUM_ALL_TO_ALLS) * (
        RECOMPUTE_GATHERS if strategy.is_recomputed else 1.0
    )
    size = samples_per_device(job, strategy) * job.model.boundary_bytes
    return count * by_size[strategy.width].time_s(size)


def state_ratio(job: ProfiledJob, strategy: Strategy) -> float:
    """Bytes of parameters, gradients and optimizer on a device over their bytes without sharding."""
    share = 1.0 / strategy.replicas + UNSHARDED_SHARE
    if strategy.sharding == "none":
        return 1.0
    if job.num_microbatches > 1 and job.is_reduce_async:
        split = 6 / 8 if strategy.sharding == "zero2" else 7 / 8
        return split * share + (1 - split)
    ratio = 7 / 8 * share + 1 / 8 if strategy.sharding == "zero2" else share
    return ratio * (ACCUMULATION if job.num_microbatches > 1 else 1.0)


def num_in_flight(job: ProfiledJob, num_stages: int, stage: int) -> int:
    """Microbatches whose activations a stage holds at once."""
    if num_stages == 1:
        return 1
    return num_stages - stage if job.schedule == "1f1b" else job.num_microbatches


def layer_bytes(job: ProfiledJob, strategy: Strategy, stage: int = 0) -> float:
    """Bytes of one layer on a device of a stage."""
    model = job.model
    states = STATES_PER_PARAMETER * model.layer_parameter_bytes / strategy.tp * state_ratio(job, strategy)
    kept = model.layer_checkpoint_bytes if strategy.is_recomputed else model.layer_activation_bytes
    samples = num_in_flight(job, strategy.pp, stage) * samples_per_device(job, strategy)
    return states + kept / strategy.width * samples


def _ends_of_stages(job: ProfiledJob, num_stages: int) -> dict[int, EndMemory]:
    """Which stage holds which end."""
    if num_stages == 1:
        return {0: job.model.ends}
    return {0: job.model.first, num_stages - 1: job.model.last}


def ends_bytes(job: ProfiledJob, strategy: Strategy) -> list[float]:
    """Bytes of the ends and of the framework on a device of each stage."""
    ratio, samples = state_ratio(job, strategy), samples_per_device(job, strategy)
    sizes = [float(CONTEXT_BYTES)] * strategy.pp
    for stage, memory in _ends_of_stages(job, strategy.pp).items():
        kept = memory.activation_bytes / strategy.width * samples * num_in_flight(job, strategy.pp, stage)
        sizes[stage] += memory.state_bytes / strategy.tp * ratio + kept
    return sizes


def ends_s(job: ProfiledJob, strategy: Strategy) -> list[float]:
    """Seconds of the ends for one microbatch on each stage, without the reduction of their gradients."""
    return [sum(passes) for passes in ends_passes_s(job, strategy)]


def ends_passes_s(job: ProfiledJob, strategy: Strategy) -> list[tuple[float, float]]:
    """Seconds of the ends forward and backward on each stage; the gathers, of which the model has the sum, half each."""
    samples, hardware = samples_per_device(job, strategy), job.hardware
    stages = _ends_of_stages(job, strategy.pp)
    forward_s = job.model.ends_forward_s * samples / strategy.width / len(stages)
    gather_s = 0.0
    if strategy.tp > 1:
        gather_s = hardware.all_gather[strategy.tp].time_s(samples * job.model.boundary_bytes)
    gather_s *= 1.0 if strategy.pp == 1 else 0.5
    times = [(0.0, 0.0)] * strategy.pp
    for stage, memory in stages.items():
        # ZeRO-3 gathers the parameters twice, each half an all-reduce; other replicas send nothing before they reduce.
        message = memory.state_bytes / strategy.tp / STATES_PER_PARAMETER / 2
        d = strategy.replicas
        moved_s = hardware.reduce_s(message * (d - 1) / d, d, strategy.tp == 1) / 2
        moved_s *= strategy.sharding == "zero3"
        forward = behind_message_s(forward_s, moved_s, hardware.slowdown)
        backward = behind_message_s(forward_s * BACKWARD_OVER_FORWARD, moved_s, hardware.slowdown)
        times[stage] = (forward + gather_s, backward + gather_s)
    return times


def switch_s(job: ProfiledJob, former: Strategy, latter: Strategy) -> float:
    """Seconds between two neighbouring layers; where no message is needed, a tiny bias that orders equals."""
    if former.width == latter.width:
        return bias_s(former, latter)
    g = max(former.width, latter.width)
    samples = job.microbatch_samples / (job.hardware.num_devices / latter.pp / g)
    return RESHARD_WEIGHT * job.hardware.reduce_s((g - 1) / g * samples * job.model.boundary_bytes, g, True)


def bias_s(former: Strategy, latter: Strategy) -> float:
    """Sharded and recomputed layers first: the repository's 1e-10 to 3e-9 s."""
    is_same_sharding = former.sharding == latter.sharding
    is_same_recompute = former.is_recomputed == latter.is_recomputed
    if former.sp != latter.sp:
        is_alike = is_same_sharding and is_same_recompute and former.dp == latter.dp
        return 1e-10 if is_alike and latter.sp > 1 else 0.0
    if former == latter:
        return 0.0
    if latter.sharding == "zero3" and latter.is_recomputed:
        return 3e-9
    if is_same_recompute:
        return 1e-9 if latter.sharding == "zero3" else 0.0
    if is_same_sharding:
        return 2e-9 if latter.is_recomputed else 0.0
    return 1e-9 if former.sharding == "zero3" and latter.is_recomputed else 0.0


def pipeline_s(
    compute_s: Sequence[float] | Floats, reducing_s: Sequence[float] | Floats, num_microbatches: int
) -> float:
    """Seconds of a step.

    Args:
        compute_s: of each stage for one microbatch, layers and ends, no gradient reduced.
        reducing_s: of each stage's layers for the microbatch whose gradients are reduced.
        num_microbatches: of the step.
    """
    c, p, m = np.asarray(compute_s, dtype=float), len(compute_s), num_microbatches
    first_bound = c.sum() + c[-1] * (m - 1)  # the last stage sets the pace
    warm_up = max(min(p - 1, m - 1) * c[0], c[1:].sum())  # a third of it forward, two thirds backward
    second_bound = warm_up + c[0] * max(0, m + 1 - p)  # the first one does
    late = np.max(np.asarray(reducing_s, dtype=float) - np.cumsum(c))
    return float(max(first_bound, second_bound) + max(0.0, late))


def buffer_bytes(job: ProfiledJob, num_stages: int, max_tp: int) -> float:
    """One gather buffer for the whole model: hidden states of a microbatch at the largest tensor degree in use."""
    return (
        job.microbatch_samples / (job.hardware.num_devices / num_stages / max_tp) * job.model.boundary_bytes
    )


def usable_bytes(memory_bytes: int) -> int:
    """Memory the plan may fill: of more than 20 GiB the allocator's cache gets a fifth, in whole MiB."""
    mib = memory_bytes // 2**20
    return (mib - int(mib * 0.2) if mib // 1024 > 20 else mib) * 2**20
