"""StepPricing: what a plan's steps are priced with on a cluster of GPUs: fitted on measured steps, or its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.kernel.curve import GpuKernels, family_of
from meshwright.costs.roofline import UNCERTAINTY, Roofline
from meshwright.costs.step.profile import StepFit, Width, packaged_step_profile
from meshwright.costs.step.step_costs import StepConstants, StepCosts, component
from meshwright.ir.table import Work
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_seconds

# Which of the kernel tables' float8 curves prices a recipe; casts are counted apart.
FLOAT8_CURVES: Mapping[str, str] = {
    "": "fp8", "tensorwise": "fp8", "rowwise": "fp8", "mxfp8": "fp8", "blockwise": "fp8_block",
}  # fmt: skip
OVERLAP_WORDS: Mapping[str, str] = {
    "reduce": "the reduction of gradients",
    "gather": "the gathering of parameters",
    "tp": "tensor-parallel exchanges",
}


@dataclass(frozen=True, eq=False)
class StepPricing:
    """How the steps of one plan are priced on one cluster.

    Attributes:
        costs: of computes and of messages.
        step_s: seconds of a step that no instruction takes: data, norm of the gradient, the host.
        width: of the interval, by traits of the plan.
        least_width: relative half width that an interval which was not interpolated has at least.
        assumptions: what the prediction rests on, for people.
    """

    costs: StepCosts | Roofline
    step_s: float
    width: Width
    least_width: float
    assumptions: tuple[str, ...]

    @property
    def is_measured(self) -> bool:
        """Were steps measured on a relative of the device?"""
        return isinstance(self.costs, StepCosts)

    def parts(self, work: Work) -> dict[str, float]:
        """Device seconds of a work by kind of kernel."""
        if isinstance(self.costs, StepCosts):
            return self.costs.parts(work)
        found: dict[str, float] = {}
        for operator in work.operators:
            kind = component(operator)
            seconds = self.costs.operator_s(operator, work.dtype, self.costs.cluster.devices[0])
            found[kind] = found.get(kind, 0.0) + seconds * operator.count
        return found


def is_gpu_cluster(cluster: ClusterSpec) -> bool:
    """Are its devices driven by a host that issues ahead? Processes on CPUs are not, and are measured here."""
    return cluster.devices[0].host == "asynchronous"


def step_costs(plan: Plan, cluster: ClusterSpec, constants: StepConstants) -> StepCosts:
    """The cost model of a plan's steps. Raises SpecError for devices without a measured relative."""
    links = NcclCollectives(cluster)
    kernels = _kernels(cluster.devices[0], FLOAT8_CURVES[plan.float8])
    return StepCosts(kernels, links, constants, plan.software_class)


@cache
def _kernels(device: DeviceSpec, recipe: str) -> GpuKernels:
    """Kernel curves of a device; kept, because they remember every shape they were asked for."""
    from meshwright.specs.cluster.source import Cluster

    return GpuKernels(device, NcclCollectives(Cluster("H100")), recipe, has_casts=False)


def pricing_of(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    left_out: str = "",
    fit: StepFit | None = None,
    extrapolate: bool = False,
) -> StepPricing:
    """What the plan's steps are priced with; arguments as of `step_prediction.predict_step`.

    Raises:
        PlanError: no step was measured on a relative of the device, and `extrapolate` is off.
    """
    profile = packaged_step_profile()
    chosen = fit or profile.without(left_out)
    device = cluster.devices[0]
    family = family_of(device)
    if family is not None:
        constants = chosen.of(family)
        basis = f"kernels and messages: published measurements of {family.upper()}, times constants fitted on measured steps"
        lines = _assumptions(plan, cluster, basis, constants.step_s)
        return StepPricing(step_costs(plan, cluster, constants), constants.step_s, chosen.width, 0.0, lines)
    if not extrapolate:
        raise PlanError(
            f"no training step was ever measured on {device.name} or a relative of it",
            allowed=", ".join(sorted(profile.seen)),
            next="ask for a prediction by the data sheet alone: --extrapolate (extrapolate=True)",
        )
    overhead = mean(constants.step_s for constants in chosen.constants.values())
    basis = f"a roofline of the data sheet of {device.name}, of which no step was ever measured"
    lines = _assumptions(plan, cluster, basis, overhead)
    return StepPricing(Roofline(cluster), overhead, chosen.width, UNCERTAINTY, lines)


def _assumptions(plan: Plan, cluster: ClusterSpec, basis: str, step_s: float) -> tuple[str, ...]:
    """For people: what the times are, which software, what runs beside computes, what is counted."""
    software = plan.software_class
    chosen = "" if plan.software else " (the plan names none)"
    beside = [words for name, words in OVERLAP_WORDS.items() if name in plan.overlap]
    if plan.shared.divides_values and OVERLAP_WORDS["gather"] not in beside:
        beside.append(OVERLAP_WORDS["gather"])
    lines = [
        *cluster.assumptions,
        basis,
        f"software {software.name!r}{chosen}: {software.meaning}",
        f"beside computes: {', '.join(beside) or 'nothing'}",
        f"{format_seconds(step_s)} between two steps (data, norm of the gradient, host), which no instruction shows",
        "checkpoints, evaluation, and devices or links that are slower than others are not counted",
    ]
    if plan.dtype == "float32":
        lines.append("in float32, in which no step was measured; bfloat16 with master_dtype float32 is usual")
    return tuple(lines)
