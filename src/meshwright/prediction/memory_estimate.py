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
from operator import mul
from typing import NamedTuple

from meshwright.lowering.memory.offload import OptimizerOnHost
from meshwright.lowering.segment.beside_plan import is_beside, pairs_of
from meshwright.prediction import memory_buffer as buffer
from meshwright.prediction.memory_allocator import LASTING, NARROW, Unused, held_bytes
from meshwright.schedules.in_flight import InFlight, in_flight
from meshwright.schedules.order import Schedule
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.value_size import (
    gradient_bytes,
    moved_bytes,
    optimizer_bytes,
    parameter_bytes,
    summed_gradient_bytes,
)
from meshwright.stage.piece import is_vocabulary_split
from meshwright.stage.saved.recomputed import recomputes_ends
from meshwright.stage.saved.size import (
    in_flight_bytes_per_token,
    pending_bytes_per_token,
)
from meshwright.stage.work import StageWork, stage_works

# Microbatches in flight beyond the schedule's where the vocabulary is split over the pipeline, because of its
# barriers (Yeung et al., arXiv 2411.05288, table 2): p + 1, p + 2 and 1.5 p instead of p.
ADDED_MICROBATCHES: Mapping[str, int] = {"one_barrier": 1, "two_barriers": 2}
INTERLACED_FACTOR = 1.5
ACTIVATIONS = "activations of microbatches in flight"
FROM_HOST = "optimizer state from the host"


@dataclass(frozen=True)
class DeviceMemory:
    """Peak of one device of the pipeline, in bytes.

    Attributes:
        device: rank in the pipeline.
        moment: of the step at which the peak is: "loss", "backward", "embedding backward" or "optimizer step".
        allocated_bytes: all tensors at that moment.
        reserved_bytes: what the allocator holds for them, freed blocks that fit nothing included.
        upper_bytes: reserved at most: nothing fused, dropout masks, sharded stages kept whole, state still on its way to the
            host, the worst fragmentation.
        context_bytes: outside the allocator: driver, kernels, communicators.
        holders: (what, bytes) at that moment, largest first; they sum to `allocated_bytes`.
        host_bytes: of its optimizer's state, in the memory of the host between two steps.
    """

    device: int
    moment: str
    allocated_bytes: float
    reserved_bytes: float
    upper_bytes: float
    context_bytes: float
    holders: tuple[tuple[str, float], ...]
    host_bytes: float = 0.0

    @property
    def needed_bytes(self) -> float:
        """What the device must have: reserved and context."""
        return self.reserved_bytes + self.context_bytes

    @property
    def lasting_bytes(self) -> float:
        """Of the tensors, those that stay for the whole run."""
        return sum(size for what, size in self.holders if what in LASTING)


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
    works = stage_works(plan, plan.stages())
    freed = buffer.freed_logits_bytes(works[-1])
    context = 0.0 if is_host else buffer.context_bytes(plan)
    sizes = _sizes_of_stages(plan, works)
    pairs = pairs_of(plan, schedule) if is_beside(plan) else ""
    peaks = in_flight(schedule, plan.pp, plan.num_microbatches, plan.num_chunks, pairs)
    devices = []
    for device, tops in enumerate(peaks):
        own = [sizes[stage] for stage in tops[0].stages] if tops else []
        moment, holders = _peak(plan, own, *_activation_bytes(plan, tops, [each.saved for each in own], own))
        late = [each.with_state_under_way() for each in own]
        most = _peak(plan, late, *_activation_bytes(plan, tops, [each.most_saved for each in own], own))[1]
        whole = sum(each.kept_whole for each in own)
        reserved, upper = sum(holders.values()), sum(most.values()) + whole
        if not is_host:
            flat = sum(each.flat for each in own)
            unused = Unused(freed if moment == "loss" else 0.0, *_late_bytes(plan, tops, own), flat)
            reserved, upper = held_bytes(plan.software_class.keeps.segments, holders, most, whole, unused)
        largest_first = tuple(sorted(holders.items(), key=lambda pair: -pair[1]))
        taken = sum(holders.values()), reserved, upper, context
        host = sum(each.from_host for each in own)
        devices.append(DeviceMemory(device, moment, *taken, largest_first, host))
    return MemoryEstimate(tuple(devices))


def _late_bytes(plan: Plan, tops: Sequence[InFlight], stages: Sequence[StageSizes]) -> tuple[float, float]:
    """What blocks gave back late: as a rule, and at most. A host that nothing makes wait is ahead by a microbatch. In a
    pipeline it waits for what it receives: at most all microbatches in flight went ahead of the device, at least only the
    first did not, and the rule is half way.
    """
    most = max((sum(map(mul, top.saved, [each.late for each in stages])) for top in tops), default=0.0)
    first = stages[0].late if stages else 0.0
    if plan.pp == 1:
        return (most if plan.num_microbatches > 1 else 0.0), most
    return max(0.0, most - first) / 2, most


class StageSizes(NamedTuple):
    """Bytes of one stage: there all the time, of one microbatch in flight, and at the moments of a step by the name under
    which they are held. `loss`: None where it is elsewhere. `most_saved`: in software that keeps all it may.
    `kept_whole`: at most, beside all others. `late`, `flat`: in no tensor (`memory_allocator.Unused`). `from_host`: there for
    the step only. `step_gradients`: those that the step reads."""

    loss: float | None
    messages: float
    always: dict[str, float]
    gradients: float
    saved: float
    most_saved: float
    pending: float
    gathered: float
    in_backward: dict[str, float]
    narrow_gradients: float
    table_gradient: float
    kept_whole: float
    late: float
    flat: float
    from_host: float
    step_gradients: float

    def with_state_under_way(self) -> StageSizes:
        """The same where what the last step used reaches the host only behind this one's peak: no row waits for that."""
        always = {**self.always, FROM_HOST: self.always[FROM_HOST] + self.from_host}
        return self._replace(always=always, from_host=0.0)


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
    narrow, is_lasting = (
        buffer.narrow_gradient_bytes(work),
        plan.software_class.keeps.narrow_gradients == "always",
    )
    saved, most_saved = (in_flight_bytes_per_token(plan, layers, each) for each in (context, most))
    is_moved = plan.options_of(OptimizerOnHost.name) is not None
    from_host = moved_bytes(plan, layers) if is_moved else 0.0
    return StageSizes(
        loss=buffer.loss_bytes(work) if layers.has_head or is_vocabulary_split(plan) else None,
        messages=buffer.message_bytes(work),
        always={
            "parameters": parameter_bytes(plan, layers),
            "optimizer state": optimizer_bytes(plan, layers) - from_host,
            FROM_HOST: 0.0,
            "buckets of gradients": buffer.bucket_bytes(work),
            NARROW: narrow if is_lasting else 0.0,
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
        narrow_gradients=0.0 if is_lasting else narrow,
        table_gradient=buffer.table_gradient_bytes(work),
        kept_whole=buffer.kept_whole_bytes(work),
        late=buffer.late_bytes(work),
        flat=buffer.flat_bytes(work),
        from_host=from_host,
        step_gradients=(summed_gradient_bytes if is_moved else gradient_bytes)(plan, layers),
    )


def _peak(
    plan: Plan, stages: Sequence[StageSizes], activations: float, one_less: float
) -> tuple[str, dict[str, float]]:
    """The fullest moment of a device and what it holds then."""
    held = {what: sum(each.always[what] for each in stages) for what in stages[0].always} if stages else {}
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
    narrow = max((each.narrow_gradients for each in stages), default=0.0)
    moments: dict[str, dict[str, float]] = {
        "backward": {**running, **worst},
        "embedding backward": {
            **held, **gradients, ACTIVATIONS: one_less, **messages, "gradient of the embedding": table,
            "gradients of one microbatch": narrow, **waiting,
        },
        "optimizer step": {
            **held, "gradients": sum(each.step_gradients for each in stages),
            FROM_HOST: held.get(FROM_HOST, 0.0) + sum(each.from_host for each in stages),
        },
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
