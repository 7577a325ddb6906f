"""Megatron-LM's rules of thumb as a planner: the ladder of degrees, microbatch and chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from meshwright.planner.space.check import check_open
from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate
from meshwright.prediction.memory_limit import (
    Rejection,
    checked_memory,
    estimated_rejection,
    out_of_memory,
)
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.operator.layer import local_sizes
from meshwright.systems.planning.microbatch_seconds import microbatch_s

MICROBATCH_SIZES = (1, 2, 4, 8, 16)  # sequences; the paper's figure on microbatches ends at 16
CONTEXT_TOKENS = (
    8192  # README of megatron/core/transformer/moe, guideline 5: contexts are split from 8K tokens on
)
LEAST_STAGES = 2  # that Megatron-LM cuts into chunks
RECOMPUTES = ("selective", "full")  # the cheaper one first
SPARE = "what the estimate may be short of"  # from the expected peak to its upper end
Beside = Callable[
    [DeviceMemory], float
]  # bytes that a stack keeps of what a device holds, and the estimate does not know
Missed = Callable[[Plan], Rejection | None]  # why a plan does not fit
DECIDED = ("tp", "pp", "dp", "cp", "ep", "num_chunks", "microbatch_size", "schedule", "layers_per_stage")


def nothing_beside(memory: DeviceMemory) -> float:
    """Of a stack that keeps what the estimate says."""
    return 0.0


def plan_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    beside: Beside = nothing_beside,
    least_stages: int = LEAST_STAGES,
    **choices: Any,
) -> Plan:
    """The plan that the rules give: the first that fits even at the upper end of its memory estimate, else the first that is
    expected to fit. Deterministic.

    Args:
        cluster: GPUs; its innermost level is the node.
        beside: bytes that the stack keeps on a device beside what the estimate knows.
        least_stages: fewest stages that the stack cuts into chunks.
        choices: further fields of a plan, such as dtype; recompute and sharding, where given, replace the rule's.

    Raises:
        PlanError: nothing divides, or `choices` name what is decided here.
        OutOfMemoryError: nothing on the ladder fits; names the nearest misses.
    """
    check_open(choices, DECIDED)
    rejected: list[Rejection] = []
    recomputes = (choices["recompute"],) if "recompute" in choices else RECOMPUTES
    for at_worst, recompute in product((True, False), recomputes):
        missed = partial(_missed, cluster=cluster, beside=beside, at_worst=at_worst)
        for degrees in ladder(model, cluster, workload):
            plan = _rung(model, cluster, workload, degrees, {**choices, "recompute": recompute})
            rejection = missed(plan)
            if rejection is None:
                return with_microbatch(plan, cluster, missed, least_stages)
            rejected.append(rejection)
    if not rejected:
        raise PlanError(
            f"no rung of the ladder divides {cluster.num_devices} devices and a batch of {workload.global_batch}",
            allowed="t that divides a node, p that divides the layers, d that divides the batch",
            next="change the batch or the number of devices",
        )
    raise out_of_memory(rejected[len(rejected) // 2 :])  # as expected: the second half


def planned(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]
) -> tuple[Plan, ...]:
    """As a planner: the one plan of the rules, with what is fixed."""
    return (plan_of(model, cluster, workload, **fix),)


def ladder(model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Iterator[dict[str, int]]:
    """Degrees to try in their order: t up to the node, then p, first those that divide the layers."""
    node, devices = min(cluster.levels[0].num_devices, cluster.num_devices), cluster.num_devices
    cp = context_degree(workload.sequence_length, node)
    tensor = _tensor_degrees(model, node // cp)
    stages = [p for p in range(1, min(model.num_layers, devices) + 1) if devices % p == 0]
    ordered = [p for p in stages if model.num_layers % p == 0] + [p for p in stages if model.num_layers % p]
    for tp, pp in [(t, 1) for t in tensor[:-1]] + [(tensor[-1], p) for p in ordered]:
        dp, rest = divmod(devices, tp * pp * cp)
        if rest == 0 and workload.global_batch % dp == 0:
            yield {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": expert_degree(model, dp * cp, node)}


def context_degree(sequence_length: int, most: int) -> int:
    """The least power of two that leaves a device 8,192 tokens or fewer, within a node."""
    degree = 1
    while (
        sequence_length // degree > CONTEXT_TOKENS and sequence_length % (2 * degree) == 0 and degree < most
    ):
        degree *= 2
    return degree


def expert_degree(model: ModelSpec, num_copies: int, node: int) -> int:
    """As many devices of a node as divide the experts and the copies of a stage; 1 for a dense model."""
    if not model.num_experts:
        return 1
    return max(n for n in range(1, node + 1) if model.num_experts % n == 0 and num_copies % n == 0)


def num_chunks(num_layers: int) -> int:
    """Chunks of a stage of so many layers: the lower middle of their divisors, but more than 1 where there are more."""
    divisors = [n for n in range(1, num_layers + 1) if num_layers % n == 0]
    return divisors[max((len(divisors) - 1) // 2, min(1, len(divisors) - 1))]


def with_microbatch(plan: Plan, cluster: ClusterSpec, missed: Missed, least_stages: int) -> Plan:
    """The plan with its chunks and the microbatch that the paper's closed form makes fastest, of those that fit."""
    share = plan.workload.global_batch // plan.dp
    tried = [plan.changed(microbatch_size=size) for size in MICROBATCH_SIZES if share % size == 0]
    fitting = [each for each in tried if each == plan or missed(each) is None]
    whole = min(
        fitting,
        key=lambda each: closed_form_s(each, cluster, interleaved(each, missed, least_stages).num_chunks),
    )
    return interleaved(whole, missed, least_stages)


def closed_form_s(plan: Plan, cluster: ClusterSpec, num_chunks: int = 1) -> float:
    """(B'/b + (p - 1) / v) (t_f(b) + t_b(b)): seconds of the microbatches of a step, of a plan that will be cut into v
    chunks, without gradients and optimizer."""
    return (plan.num_microbatches + (plan.pp - 1) / num_chunks) * microbatch_s(plan, cluster)


def interleaved(plan: Plan, missed: Missed, least_stages: int = LEAST_STAGES) -> Plan:
    """The plan with chunks where the schedule allows it (p divides the microbatches) and its memory fits."""
    if plan.pp < least_stages or plan.num_microbatches % plan.pp or plan.model.num_layers % plan.pp:
        return plan
    layers = plan.model.num_layers // plan.pp
    chunks = num_chunks(layers)
    if chunks == 1:
        return plan
    stages = (layers // chunks,) * (plan.pp * chunks)
    made = plan.changed(schedule="interleaved_1f1b", num_chunks=chunks, layers_per_stage=stages)
    return plan if missed(made) is not None else made


def _tensor_degrees(model: ModelSpec, most: int) -> list[int]:
    """Powers of two within a node that divide what is split; experts go without."""
    found, degree = [1], 2
    while not model.num_experts and degree <= most:
        try:
            local_sizes(model, degree)
        except PlanError:
            break
        found.append(degree)
        degree *= 2
    return found


def _rung(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    degrees: dict[str, int],
    choices: dict[str, Any],
) -> Plan:
    """A rung as a plan with microbatches of one sequence and no chunks."""
    usual = {
        "sharding": "zero1" if degrees["dp"] * degrees["cp"] > 1 else "none",
        "sequence_parallel": degrees["tp"] > 1,
    }
    return Plan.of(model, cluster, workload, schedule="1f1b", **{**usual, **choices, **degrees})


def _missed(plan: Plan, cluster: ClusterSpec, beside: Beside, at_worst: bool) -> Rejection | None:
    """Why the plan does not fit, as expected or at worst; or None."""
    memory, _ = checked_memory(plan, cluster, cluster.memory_bytes)
    devices = tuple(_with(each, beside(each), at_worst) for each in memory.devices)
    return estimated_rejection(plan, MemoryEstimate(devices), cluster.memory_bytes)


def _with(memory: DeviceMemory, more_bytes: float, at_worst: bool) -> DeviceMemory:
    """A device's peak with so many bytes more, or its upper end as the peak."""
    upper_bytes = memory.upper_bytes + more_bytes
    peak_bytes = upper_bytes if at_worst else memory.allocated_bytes + more_bytes
    spare = (SPARE, peak_bytes - memory.allocated_bytes)
    return replace(
        memory, allocated_bytes=peak_bytes, upper_bytes=upper_bytes, holders=(*memory.holders, spare)
    )
