"""Advice about a plan: does it fit, how much larger its microbatch and sequence may be, what wastes devices and links.

Each rule is a function of a plan and its cluster; what it needs to know of a device is in the device's own file.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.planner.advice.device_advice import Advice, device_advice
from meshwright.prediction.memory_estimate import MemoryEstimate, estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection
from meshwright.schedules.order import Schedule, registered
from meshwright.specs.bound.bound import MOST_TOKENS
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, ScheduleError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.units import format_bytes

SEQUENCE_STEP = 128  # tokens; the longest sequence is a multiple of it and of 2 cp tp


def advice_of(
    plan: Plan, cluster: ClusterSpec, schedule: Schedule | None = None, capacity_bytes: int | None = None
) -> tuple[Advice, ...]:
    """All advice about a plan on GPUs: memory first, then what is wasted.

    Args:
        schedule: the function behind ``plan.schedule``; None: the registered one.
        capacity_bytes: of a device, where it is not what the cluster's have.

    Raises PlanError where nobody knows the schedule.
    """
    chosen = schedule or registered().get(plan.schedule)
    if chosen is None:
        raise PlanError(
            f"the plan's schedule {plan.schedule!r} is not registered",
            allowed=", ".join(registered()),
            next="pass the schedule itself",
        )
    capacity = cluster.memory_bytes if capacity_bytes is None else capacity_bytes
    return (
        memory_advice(plan, cluster, chosen, capacity),
        microbatch_advice(plan, cluster, chosen, capacity),
        sequence_advice(plan, cluster, chosen, capacity),
        *device_advice(plan, cluster),
    )


def memory_advice(plan: Plan, cluster: ClusterSpec, schedule: Schedule, capacity: int) -> Advice:
    """Does it fit, and how much is free or missing on the fullest device."""
    memory = estimate_memory(plan, cluster, schedule)
    needed = _needed(memory)
    worst = memory.upper_bytes + memory.context_bytes
    numbers = {"needed_bytes": needed, "free_bytes": capacity - needed, "upper_bytes": worst}
    room = f"{format_bytes(needed)} of {format_bytes(capacity)} on the fullest device"
    if needed > capacity:
        return Advice("memory", f"does not fit: {room}, {format_bytes(needed - capacity)} too much", numbers)
    if worst > capacity:
        at_worst = f"at worst {format_bytes(worst)}, which does not fit"
        return Advice(
            "memory", f"fits: {room}, {format_bytes(capacity - needed)} free; {at_worst}", numbers, False
        )
    return Advice("memory", f"fits: {room}, {format_bytes(capacity - needed)} free", numbers, False)


def microbatch_advice(plan: Plan, cluster: ClusterSpec, schedule: Schedule, capacity: int) -> Advice:
    """The largest microbatch that divides the batch and fits, all else as it is."""
    share = plan.workload.global_batch // plan.dp
    sizes = [size for size in range(share, 0, -1) if share % size == 0]
    fits = (size for size in sizes if _fits(plan.changed(microbatch_size=size), cluster, schedule, capacity))
    largest = next(fits, 0)
    numbers = {"largest": largest, "given": plan.microbatch_size}
    if not largest:
        return Advice("microbatch", "no microbatch fits with this plan", numbers)
    told = "" if largest == plan.microbatch_size else f"; the plan has {plan.microbatch_size}"
    least = ", all that a pipeline has of the batch," if largest == share else ""
    return Advice(
        "microbatch", f"a microbatch of {largest}{least} is the largest that fits{told}", numbers, False
    )


def sequence_advice(plan: Plan, cluster: ClusterSpec, schedule: Schedule, capacity: int) -> Advice:
    """The longest sequence that fits, all else as it is: a multiple of `SEQUENCE_STEP` and of what cp and tp divide."""
    batch, given = plan.workload.global_batch, plan.workload.sequence_length
    step = SEQUENCE_STEP
    while step % (2 * plan.cp * plan.tp):
        step += SEQUENCE_STEP

    def fits(count: int) -> bool:
        return _fits(plan.changed(workload=Workload(batch, count * step)), cluster, schedule, capacity)

    longest = step * largest_of(fits, MOST_TOKENS // step)
    if longest < given and _fits(plan, cluster, schedule, capacity):
        longest = given  # between two multiples
    numbers = {"longest": longest, "given": given}
    if not longest:
        return Advice("sequence", f"not even a sequence of {step} tokens fits with this plan", numbers)
    made_for = plan.model.max_sequence_length
    beyond = f"; the model was made for {made_for}" if longest > made_for else ""
    return Advice(
        "sequence", f"{longest} tokens are the longest sequence that fits; the plan has {given}{beyond}", numbers, False
    )  # fmt: skip


def largest_of(fits: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that fits, 0 where 1 does not: doubled, then bisected; what fits must be a beginning."""
    if most < 1 or not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _needed(memory: MemoryEstimate) -> float:
    """Of the fullest device, as the verdict on fitting counts it."""
    return max(device.allocated_bytes + device.context_bytes for device in memory.devices)


def _fits(plan: Plan, cluster: ClusterSpec, schedule: Schedule, capacity: int) -> bool:
    """Does it fit? A count of microbatches that the schedule refuses does not."""
    try:
        memory = estimate_memory(plan, cluster, schedule)
    except ScheduleError:
        return False
    return estimated_rejection(plan, memory, capacity) is None
