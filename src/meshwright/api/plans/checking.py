"""`check`: the static proof of a program with a face: legal, free of deadlock, whole in its gradients, and it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meshwright.api.subjects.keywords import check_keywords
from meshwright.api.subjects.subject import Subject, subject
from meshwright.executor.capability import check_plan
from meshwright.specs.error import (
    CountError,
    DeadlockError,
    MeshwrightError,
    OutOfMemoryError,
    ProgramError,
    ScheduleError,
    SpecError,
)

if TYPE_CHECKING:
    from meshwright.planner.advice.device_advice import Advice
    from meshwright.planner.advice.hardware_change import HardwareChange
    from meshwright.prediction.memory_estimate import MemoryEstimate
    from meshwright.specs.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Check:
    """What was proven of a program. A verdict is None where the proof did not come that far, or has nothing to say.

    ``peak_bytes``: for every list the bound of its device memory in any legal order, where sizes are known; of a plan on
    GPUs what is expected of every device of the pipeline, context included, by ``memory``. ``made`` is what was proven.
    """

    label: str
    num_instructions: int
    legal: bool | None = None
    deadlock_free: bool | None = None
    gradients_whole: bool | None = None
    fits: bool | None = None
    peak_bytes: tuple[float, ...] = ()
    capacity_bytes: int | None = None
    error: MeshwrightError | None = None
    memory: MemoryEstimate | None = field(default=None, repr=False)
    made: Subject | None = field(default=None, repr=False)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Of a plan on GPUs: how much is free, how much larger it may be, what it wastes. Empty for anything else."""
        if self.memory is None or self.made is None or self.made.plan is None or self.made.cluster is None:
            return ()
        from meshwright import catalog
        from meshwright.planner.advice.advice import advice_of

        plan, schedule = self.made.plan, catalog.find_schedule(self.made.plan.schedule)
        return advice_of(plan, self.made.cluster, schedule, self.capacity_bytes)

    @property
    def hardware(self) -> tuple[HardwareChange, ...]:
        """Of a plan that fits on GPUs: what its step gains by each change of hardware, the most helpful first."""
        return self._priced[0]

    @property
    def unpriced(self) -> str:
        """Why the step of a plan on GPUs cannot be predicted, so that `hardware` is empty; empty where it can be."""
        return self._priced[1]

    @cached_property
    def _priced(self) -> tuple[tuple[HardwareChange, ...], str]:
        """Changes of hardware, or why there are none: the proof stands without any price."""
        if not self.advice or not self.fits or self.made is None:
            return (), ""
        from meshwright import catalog
        from meshwright.planner.advice.hardware_change import hardware_changes

        plan, cluster = self.made.plan, self.made.cluster
        if plan is None or cluster is None:
            return (), ""
        schedule = catalog.find_schedule(plan.schedule)
        try:
            return hardware_changes(plan, cluster, schedule=schedule, capacity_bytes=self.capacity_bytes), ""
        except SpecError as error:  # a number format that the device or its kernel tables do not have
            return (), str(error)

    @property
    def train_refusal(self) -> str:
        """Why `train` would refuse an accepted plan, which is simulated only; empty where it runs it, and for no plan."""
        plan = None if self.made is None else self.made.plan
        if plan is None or not self.is_accepted:
            return ""
        try:
            check_plan(plan)
        except MeshwrightError as error:
            return str(error)
        return ""

    @property
    def is_accepted(self) -> bool:
        """Was nothing refused?"""
        return self.error is None

    @property
    def fits_at_worst(self) -> bool:
        """Does it fit even where the allocator wastes the most and the software keeps all it may?"""
        if self.memory is None or self.capacity_bytes is None:
            return self.fits is True
        return self.memory.upper_bytes + self.memory.context_bytes <= self.capacity_bytes

    def __bool__(self) -> bool:
        return self.is_accepted


def check(
    what: Any = None,
    *,
    memory_bytes: int | None = None,
    host: str | None = None,
    global_batch: int | None = None,
    seq: int | None = None,
    fix: Mapping[str, Any] | None = None,
    **choices: Any,
) -> Check:
    """Prove that a plan, program or schedule is legal, free of deadlock, whole in its gradients, and fits.

    Args:
        what, choices: as in `subject`; a bare schedule is proven with gradient reduction and optimizer step.
        global_batch, seq, fix: as of `plan`, with a model as `what` and a `cluster`: its fastest plan is checked.
        memory_bytes: of a device; None: of the plan's cluster, or unknown.
        host: "asynchronous" or "in_order"; None: that of the plan's devices, otherwise both.

    The verdicts are in the result, a refusal in `error`; raises only where there is no program to check.
    """
    from meshwright.ir.judge.verify import verify
    from meshwright.ir.timing.wiring import wire

    check_keywords("check", choices, check, subject)
    if global_batch is not None or seq is not None or fix:
        try:
            what = _planned(what, choices, global_batch, seq, fix, memory_bytes)
        except OutOfMemoryError as error:
            return Check(str(what), 0, fits=False, error=error)
    try:
        # nothing is priced here, so devices that were never measured need no permission
        made = (
            what if isinstance(what, Subject) else subject(what, with_step=True, extrapolate=True, **choices)
        )
    except CountError:  # there is no order to judge
        raise
    except ProgramError as error:  # the order itself is refused, before there is a program
        return Check(
            str(what if choices.get("schedule") is None else choices["schedule"]), 0, legal=False, error=error
        )
    capacity = made.capacity_bytes if memory_bytes is None else memory_bytes
    result = Check(made.label, made.program.num_rows, capacity_bytes=capacity, made=made)
    try:
        wiring = made.predicted.made.wiring if made.predicted is not None else wire(made.program)
        result = replace(result, legal=True)
        hosts = [host or made.host] if made.plan is not None or host else ["asynchronous", "in_order"]
        proofs = [verify(wiring, host=one) for one in hosts]
    except ProgramError as error:
        return _refused(result, error)
    result = replace(result, deadlock_free=True, gradients_whole=True)
    if made.plan is not None and made.memory is not None:
        return _fitting_estimate(result, made.plan, made.memory)
    return _fitting(result, made, proofs[0].peak_bytes, proofs[0].tiers)


def _planned(
    model: Any, choices: dict[str, Any], global_batch: int | None, seq: int | None, fix: Mapping[str, Any] | None,
    memory_bytes: int | None,
) -> Plan:  # fmt: skip
    """The fastest plan of a model on a cluster, found as `plan` does. Raises SpecError where something is missing."""
    from meshwright.api.plans.planning import plan
    from meshwright.api.subjects.loading import cluster_named

    given = choices.get("cluster")
    needed = {"a model": model, "a cluster": given, "--global-batch": global_batch, "--seq": seq}
    missing = [name for name, value in needed.items() if value is None]
    others = [name for name, value in choices.items() if value and name not in ("cluster", "extrapolate")]
    if missing or others or global_batch is None or seq is None or given is None:
        raise SpecError(
            f"a model is checked without {' and '.join(missing)}"
            if missing
            else f"a model with {' and '.join(others)}",
            allowed="MODEL CLUSTER --global-batch N --seq N, and --fix for what is decided",
            next="or give a plan's file alone",
        )
    cluster = cluster_named(given)
    limit = None if memory_bytes is None else min(memory_bytes, cluster.memory_bytes)
    found = plan(
        model, cluster, global_batch=global_batch, seq=seq, fix=fix, extrapolate=True, max_memory_bytes=limit
    )
    fastest: Plan = found[0].plan
    return fastest


def _refused(result: Check, error: ProgramError) -> Check:
    """Which proof failed: of a wired program either the deadlock's, or that of whole gradients."""
    if result.legal is None or isinstance(error, ScheduleError):
        return replace(result, legal=False, error=error)
    if isinstance(error, DeadlockError):
        return replace(result, deadlock_free=False, error=error)
    return replace(result, deadlock_free=True, gradients_whole=False, error=error)


def _fitting(result: Check, made: Subject, peaks: Any, tiers: Sequence[str]) -> Check:
    """The verdict on memory, where the sizes of values and devices are known."""
    if "device" not in tiers or not peaks[:, tiers.index("device")].any():
        return result
    bounds = tuple(float(value) for value in peaks[:, tiers.index("device")])
    result = replace(result, peak_bytes=bounds)
    if result.capacity_bytes is None:
        return result
    if max(bounds) <= result.capacity_bytes:
        return replace(result, fits=True)
    from meshwright.prediction.memory_limit import largest_holders

    worst = bounds.index(max(bounds))
    error = OutOfMemoryError(
        f"device {worst} of {made.label} needs up to {max(bounds) / 1e9:.2f} GB, it has {result.capacity_bytes / 1e9:.2f} GB",
        holders=largest_holders(made.program, worst, max(bounds)),
        next="recompute, use more stages, or a smaller microbatch",
    )
    return replace(result, fits=False, error=error)


def _fitting_estimate(result: Check, plan: Plan, memory: MemoryEstimate) -> Check:
    """The verdict on memory of a plan on GPUs: tensors and context against what the devices have."""
    from meshwright.prediction.memory_limit import estimated_rejection

    peaks = tuple(device.allocated_bytes + device.context_bytes for device in memory.devices)
    result = replace(result, peak_bytes=peaks, memory=memory)
    if result.capacity_bytes is None:
        return result
    missing = estimated_rejection(plan, memory, result.capacity_bytes)
    if missing is None:
        return replace(result, fits=True)
    error = OutOfMemoryError(
        f"{result.label}: {missing.reason}",
        holders=missing.holders,
        next="recompute, shard, use more stages, or a smaller microbatch",
    )
    return replace(result, fits=False, error=error)
