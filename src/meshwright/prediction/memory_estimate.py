"""`estimate_memory`: the peak of every device of the pipeline by moments of a step, with the largest holders.

What is there all the time, plus what microbatches in flight keep, plus what one moment adds: the loss, the backward of
a block, the embedding's backward, the optimizer's step. No program and no simulation: the order of a schedule is walked
once and remembered, so a plan takes well under 10 ms. `allocated_bytes` is what torch.cuda.max_memory_allocated
counts, `reserved_bytes` what the caching allocator takes from the device for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from meshwright.prediction import memory_buffer as buffer
from meshwright.schedules.order import Compute, Schedule
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.value_size import gradient_bytes, optimizer_bytes, parameter_bytes
from meshwright.stage.piece import is_vocabulary_split
from meshwright.stage.saved.recomputed import recomputes_ends
from meshwright.stage.saved.size import (
    in_flight_bytes_per_token,
    pending_bytes_per_token,
)
from meshwright.stage.work import StageWork, stage_works

# Share of what PyTorch's allocator reserves that is in freed blocks which fit no request: 15 % on average over eight
# language models (Guo et al., GMLake, arXiv 2401.08156), next to nothing where segments expand. The estimate is half way.
WASTED_SHARE = 0.15
MAX_FRAGMENTATION = 1.0 / (1.0 - WASTED_SHARE)
FRAGMENTATION = (1.0 + MAX_FRAGMENTATION) / 2
# Microbatches in flight beyond the schedule's where the vocabulary is split over the pipeline, because of its
# barriers (Yeung et al., arXiv 2411.05288, table 2): p + 1, p + 2 and 1.5 p instead of p.
ADDED_MICROBATCHES: Mapping[str, int] = {"one_barrier": 1, "two_barriers": 2}
INTERLACED_FACTOR = 1.5
ACTIVATIONS = "activations of microbatches in flight"


@dataclass(frozen=True)
class DeviceMemory:
    """Peak of one device of the pipeline, in bytes.

    Attributes:
        device: rank in the pipeline.
        moment: of the step at which the peak is: "loss", "backward", "embedding backward" or "optimizer step".
        allocated_bytes: all tensors at that moment.
        reserved_bytes: what the allocator holds for them, freed blocks that fit nothing included.
        upper_bytes: reserved at most: nothing fused, dropout masks, sharded stages kept whole, the worst fragmentation.
        context_bytes: outside the allocator: driver, kernels, communicators.
        holders: (what, bytes) at that moment, largest first; they sum to `allocated_bytes`.
    """

    device: int
    moment: str
    allocated_bytes: float
    reserved_bytes: float
    upper_bytes: float
    context_bytes: float
    holders: tuple[tuple[str, float], ...]

    @property
    def needed_bytes(self) -> float:
        """What the device must have: reserved and context."""
        return self.reserved_bytes + self.context_bytes


@dataclass(frozen=True)
class MemoryEstimate:
    """Peaks of every device of one pipeline; all others are copies of it."""

    devices: tuple[DeviceMemory, ...]

    @property
    def fullest(self) -> DeviceMemory:
        """The device with the highest peak."""
        return max(self.devices, key=lambda device: device.allocated_bytes)

    @property
    def allocated_bytes(self) -> float:
        """Peak of tensors on the fullest device."""
        return self.fullest.allocated_bytes

    @property
    def reserved_bytes(self) -> float:
        """Peak of the allocator on the fullest device."""
        return self.fullest.reserved_bytes

    @property
    def upper_bytes(self) -> float:
        """Bound of the allocator on any device."""
        return max(device.upper_bytes for device in self.devices)

    @property
    def context_bytes(self) -> float:
        """Outside the allocator, on the fullest device."""
        return self.fullest.context_bytes

    @property
    def holders(self) -> tuple[tuple[str, float], ...]:
        """(what, bytes) on the fullest device, largest first."""
        return self.fullest.holders


def estimate_memory(plan: Plan, cluster: ClusterSpec, schedule: Schedule) -> MemoryEstimate:
    """Peaks of one step of a plan on every device of the pipeline.

    Args:
        cluster: a host that issues in order (CPU processes) has no caching allocator and no driver's context.
        schedule: the function behind ``plan.schedule``.

    Raises:
        ScheduleError: the schedule's order is none.
    """
    is_host = cluster.machine.memory_rule == "bound"
    usual, worst = (1.0, 1.0) if is_host else (FRAGMENTATION, MAX_FRAGMENTATION)
    works = stage_works(plan, plan.stages())
    freed = 0.0 if is_host else buffer.freed_logits_bytes(works[-1])
    context = 0.0 if is_host else buffer.context_bytes(plan)
    sizes = _sizes_of_stages(plan, works)
    peaks = in_flight(schedule, plan.pp, plan.num_microbatches, plan.num_chunks)
    devices = []
    for device, tops in enumerate(peaks):
        own = [sizes[stage] for stage in tops[0].stages] if tops else []
        moment, holders = _peak(plan, own, *_activation_bytes(plan, tops, [each.saved for each in own], own))
        most = _peak(plan, own, *_activation_bytes(plan, tops, [each.most_saved for each in own], own))[1]
        bound = sum(most.values()) + sum(each.kept_whole for each in own)
        allocated, kept = sum(holders.values()), freed if moment == "loss" else 0.0
        reserved, upper = usual * (allocated + kept), worst * (bound + kept)
        largest_first = tuple(sorted(holders.items(), key=lambda pair: -pair[1]))
        devices.append(DeviceMemory(device, moment, allocated, reserved, upper, context, largest_first))
    return MemoryEstimate(tuple(devices))


class StageSizes(NamedTuple):
    """Bytes of one stage: there all the time, of one microbatch in flight, and at the moments of a step by the name under
    which they are held. `loss`: None where it is elsewhere. `most_saved`: in software that keeps all it may.
    `kept_whole`: at most, beside all others."""

    loss: float | None
    messages: float
    always: dict[str, float]
    gradients: float
    saved: float
    most_saved: float
    pending: float
    gathered: float
    in_backward: dict[str, float]
    table_gradient: float
    kept_whole: float


def _sizes_of_stages(plan: Plan, works: Sequence[StageWork]) -> list[StageSizes]:
    """Of every stage; those that differ in the number of their first block only are counted once."""
    model, found = plan.model, []
    is_uniform = len(model.blocks) == 1 and not model.trained
    known: dict[tuple[object, ...], StageSizes] = {}
    for number, work in enumerate(works):
        alike = work.layers._replace(first_block=0) if is_uniform else work.layers
        again = work.recomputed.num_blocks, recomputes_ends(plan, work.layers)
        key = (alike, again, number < plan.pp)  # of a split vocabulary only a device's first stage has a part
        if key not in known:
            known[key] = _stage_sizes(work)
        found.append(known[key])
    return found


def _stage_sizes(work: StageWork) -> StageSizes:
    plan, layers, tokens, context = work.plan, work.layers, work.num_tokens, work.context
    most = context._replace(is_fused=False, has_dropout=True, keeps_float8=False)
    saved, most_saved = (in_flight_bytes_per_token(plan, layers, each) for each in (context, most))
    return StageSizes(
        loss=buffer.loss_bytes(work) if layers.has_head or is_vocabulary_split(plan) else None,
        messages=buffer.message_bytes(work),
        always={
            "parameters": parameter_bytes(plan, layers),
            "optimizer state": optimizer_bytes(plan, layers),
        },
        gradients=gradient_bytes(plan, layers),
        saved=tokens * saved,
        most_saved=tokens * most_saved,
        pending=tokens * pending_bytes_per_token(plan, layers) / plan.tp,
        gathered=buffer.gathered_bytes(work),
        in_backward={
            "recomputed activations": buffer.recomputed_bytes(work),
            "gradients inside a block": buffer.inner_gradient_bytes(work),
            "weight gradients of a block": buffer.weight_gradient_bytes(work),
            "exchanges inside a block": buffer.exchange_bytes(work),
            "gradients before their reduction": buffer.reduction_bytes(work),
        },
        table_gradient=buffer.table_gradient_bytes(work),
        kept_whole=buffer.kept_whole_bytes(work),
    )


@dataclass(frozen=True)
class InFlight:
    """A moment of a device's order at which no other has more: for each of its stages the number of microbatches
    between F and the end of their backward, and between I and W."""

    stages: tuple[int, ...]
    saved: tuple[int, ...]
    pending: tuple[int, ...]


@lru_cache(maxsize=256)
def in_flight(
    schedule: Schedule, num_devices: int, num_microbatches: int, num_chunks: int
) -> tuple[tuple[InFlight, ...], ...]:
    """For every device the moments of its order that may be its peak, whatever its stages keep."""
    return tuple(_walk(row) for row in schedule.orders(num_devices, num_microbatches, num_chunks))


def _walk(row: Sequence[Compute]) -> tuple[InFlight, ...]:
    stages = tuple(sorted({compute.stage for compute in row}))
    place = {stage: k for k, stage in enumerate(stages)}
    counts = [0] * (2 * len(stages))
    seen, is_more = set(), False
    for name, stage, _ in row:
        k = place[stage]
        if name in ("B", "W"):
            if is_more:  # than before and behind: only such a moment may be the peak
                seen.add(tuple(counts))
            counts[k] -= 1
        if name == "W":
            counts[len(stages) + k] -= 1
        if name == "F":
            counts[k] += 1
        elif name == "I":
            counts[len(stages) + k] += 1
        is_more = name in ("F", "I") or (is_more and name not in ("B", "W"))
    if is_more:
        seen.add(tuple(counts))
    tops = _undominated(seen)
    return tuple(InFlight(stages, top[: len(stages)], top[len(stages) :]) for top in tops)


def _undominated(seen: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that no other exceeds in every place; few, as a device has few stages."""
    tops: list[tuple[int, ...]] = []
    for counts in sorted(seen, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(counts, top, strict=True)) for top in tops):
            tops.append(counts)
    return tops


def _peak(
    plan: Plan, stages: Sequence[StageSizes], activations: float, one_less: float
) -> tuple[str, dict[str, float]]:
    """The fullest moment of a device and what it holds then."""
    held = {what: sum(each.always[what] for each in stages) for what in ("parameters", "optimizer state")}
    gradients = {"gradients": sum(each.gradients for each in stages)}
    # FSDP has no gradients before a step's first backward, and a block's part only behind its own
    is_first = plan.shared.divides_values and plan.num_microbatches == 1
    waiting = {"softmax of the split vocabulary": buffer.waiting_bytes(plan)}
    messages = {"messages between stages": max((each.messages for each in stages), default=0.0)}
    running = {
        **held, **({} if is_first else gradients), ACTIVATIONS: activations, **messages,
        "gathered parameters": max((each.gathered for each in stages), default=0.0),
        **waiting,
    }  # fmt: skip
    worst = max((each.in_backward for each in stages), key=lambda sizes: sum(sizes.values()), default={})
    table = max((each.table_gradient for each in stages), default=0.0)
    moments: dict[str, dict[str, float]] = {
        "backward": {**running, **worst},
        "embedding backward": {
            **held, **gradients, ACTIVATIONS: one_less, **messages, "gradient of the embedding": table, **waiting,
        },
        "optimizer step": {**held, **gradients},
    }  # fmt: skip
    losses = [each.loss for each in stages if each.loss is not None]
    if losses:
        moments["loss"] = {**running, "logits and their gradient": max(losses)}
    name = max(moments, key=lambda moment: sum(moments[moment].values()))
    return name, {what: size for what, size in moments[name].items() if size > 0}


def _activation_bytes(
    plan: Plan, tops: Sequence[InFlight], saved: Sequence[float], stages: Sequence[StageSizes]
) -> tuple[float, float]:
    """Peak bytes that microbatches in flight keep on a device, and the same with one microbatch less on its first stage."""
    if not tops:
        return 0.0, 0.0
    most = max(
        sum(map(mul, _with_vocabulary(plan, top.saved), saved))
        + sum(count * each.pending for count, each in zip(top.pending, stages, strict=True) if count)
        for top in tops
    )
    return most, max(0.0, most - saved[0])


def _with_vocabulary(plan: Plan, counts: Sequence[int]) -> Sequence[float]:
    """Microbatches in flight, with those that wait for the barriers of a split vocabulary; never more than there are."""
    if not is_vocabulary_split(plan):
        return counts
    if plan.vocabulary == "interlaced":
        return [min(math.floor(INTERLACED_FACTOR * count), plan.num_microbatches) for count in counts]
    added = ADDED_MICROBATCHES[plan.vocabulary]
    return [min(count + added, plan.num_microbatches) for count in counts]
