"""Does a plan fit, and how surely: its program's bound, or on GPUs the memory estimate, against what devices have; who
holds the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.ir.judge.verify import Verification
from meshwright.ir.program import Program
from meshwright.lowering.place import Placement
from meshwright.prediction.description import describe
from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate, estimate_memory
from meshwright.schedules.order import registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import OutOfMemoryError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_bytes

NUM_NEAREST = 3  # of the plans that do not fit, those an error names: more do not help to choose
# What is held all the time, as people call it; the rest of a bound is what microbatches in flight keep.
HELD: dict[str, str] = {
    "parameter": "parameters",
    "weight_gradient": "weight gradients",
    "optimizer_state": "optimizer state",
}
IN_FLIGHT = "activations and gradients of microbatches in flight"
CONTEXT = "driver, kernels and communicators"


@dataclass(frozen=True)
class Rejection:
    """A plan that does not fit: the fullest device (of the program's lists), what it needs and what is there, in bytes.

    `needed_bytes` is the bound of all legal orders; of a plan on GPUs the expected peak, and `upper_bytes` its worst case.
    """

    plan: Plan
    device: int
    needed_bytes: float
    available_bytes: int
    holders: tuple[tuple[str, int], ...]
    upper_bytes: float | None = None

    @property
    def excess_bytes(self) -> float:
        """How much is missing."""
        return self.needed_bytes - self.available_bytes

    @property
    def reason(self) -> str:
        """One sentence for people."""
        needed, available = format_bytes(self.needed_bytes), format_bytes(self.available_bytes)
        if self.upper_bytes is None:
            return f"device {self.device} may need {needed}, it has {available}"
        return f"device {self.device} needs {needed}, at worst {format_bytes(self.upper_bytes)}, it has {available}"


def rejection(
    plan: Plan, verified: Verification, placement: Placement, most_bytes: int | None = None
) -> Rejection | None:
    """Why the plan does not fit on its devices, or so many bytes of each; None where it does. The device that misses most."""
    if "device" not in verified.tiers:
        return None
    program = verified.wiring.program
    needed = verified.peak_bytes[:, verified.tiers.index("device")]
    has = [
        placement.cluster.devices[placement.of_list(program, device)].memory_bytes
        for device in range(program.num_lists)
    ]
    available = [min(size, most_bytes or size) for size in has]
    missing = [float(needed[device]) - available[device] for device in range(program.num_lists)]
    worst = max(range(program.num_lists), key=missing.__getitem__)
    if missing[worst] <= 0:
        return None
    bound = float(needed[worst])
    return Rejection(plan, worst, bound, available[worst], largest_holders(program, worst, bound))


def estimated_rejection(plan: Plan, memory: MemoryEstimate, available_bytes: int) -> Rejection | None:
    """Why a plan on GPUs does not fit: tensors and what lies outside the allocator, of the fullest device of the pipeline."""
    worst = max(memory.devices, key=lambda device: device.allocated_bytes + device.context_bytes)
    needed = worst.allocated_bytes + worst.context_bytes
    if needed <= available_bytes:
        return None
    held = [(what, int(size)) for what, size in worst.holders]
    rest = int(needed) - sum(size for _, size in held)  # what rounding took goes with the context
    holders = tuple(sorted([*held, (CONTEXT, rest)], key=lambda pair: -pair[1]))
    upper = worst.upper_bytes + worst.context_bytes
    return Rejection(plan, worst.device, needed, available_bytes, holders, upper)


def checked_memory(
    plan: Plan, cluster: ClusterSpec, available_bytes: int
) -> tuple[MemoryEstimate, Rejection | None]:
    """The estimate of a plan of a registered schedule, and why it does not fit into so many bytes; None where it does."""
    memory = estimate_memory(plan, cluster, registered()[plan.schedule])
    return memory, estimated_rejection(plan, memory, available_bytes)


def fit_probability(memory: MemoryEstimate, available_bytes: float) -> float:
    """Chance that no device needs more: that of the one that is least likely to fit, as all of a pipeline run one
    software and one allocator.

    What the allocator of a device holds is taken to be distributed as a triangle around what it usually reserves: at most
    all that may go wrong (`DeviceMemory.upper_bytes`), as far below as above, and never less than what stays for the whole
    run. Half of all runs need more than is reserved as a rule; how often measured ones did is told by `validate unseen`.
    """
    return min(_device_probability(device, available_bytes) for device in memory.devices)


def _device_probability(device: DeviceMemory, available_bytes: float) -> float:
    room = available_bytes - device.context_bytes
    high = device.upper_bytes
    middle = min(device.reserved_bytes, high)
    low = max(device.lasting_bytes, 2 * middle - high)
    if room >= high:
        return 1.0
    if room <= low:
        return 0.0
    if room <= middle:
        return ((room - low) / (middle - low)) ** 2 / 2
    return 1.0 - ((high - room) / (high - middle)) ** 2 / 2


def largest_holders(program: Program, device: int, bound_bytes: float) -> tuple[tuple[str, int], ...]:
    """(what, bytes) on a list's device, the largest first; they sum to the bound."""
    first = program.coordinates(device).get(program.axes[0].name, 0)
    stages = {hop.stage for path in program.tables.paths for hop in path if hop.device == first}
    groups = [g for g, group in enumerate(program.tables.groups) if stages & set(group.stages)]
    sizes = {row.kind: row.by_index for row in program.tables.value_bytes}
    held = [
        (name, int(sum(by_index[min(g, len(by_index) - 1)] for g in groups)))
        for kind, name in HELD.items()
        if (by_index := sizes.get(kind))
    ]
    rest = int(bound_bytes) - sum(size for _, size in held)
    return tuple(sorted([*held, (IN_FLIGHT, max(0, rest))], key=lambda pair: -pair[1]))


def out_of_memory(
    rejected: Sequence[Rejection], num_plans: int | None = None, fewer: str = ""
) -> OutOfMemoryError:
    """The error for a search in which nothing fits: the nearest misses and the holders of the nearest one.

    `num_plans`: of the search, where not all of its rejections are given. `fewer`: advice besides the usual.
    """
    nearest = sorted(rejected, key=lambda miss: miss.excess_bytes)[:NUM_NEAREST]
    lines = [f"  {describe(miss.plan)}: {miss.reason}" for miss in nearest]
    given = "\n".join([f"none of {num_plans or len(rejected)} plans fits; the nearest misses are", *lines])
    return OutOfMemoryError(
        given,
        holders=nearest[0].holders,
        allowed=f"plans within {format_bytes(nearest[0].available_bytes)} on every device",
        next="take more devices (--solve gpus says how many), a smaller model, or a shorter sequence" + fewer,
    )
