"""Pricing: what a plan's steps are priced with on a cluster: the one place that chooses a price model for a machine.

Of GPUs curves of kernels and messages times constants fitted on measured steps, or the data sheet; of processes of this
machine its profile, or a roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Protocol

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.cost import CommunicationModel, CostModel
from meshwright.costs.kernel.curve import GpuKernels, family_of, gpu_costs, roofline_of
from meshwright.costs.kernel.packaged import load_kernel_profile
from meshwright.costs.measured.calibrated_cluster import device_factors, measured_basis, profile_of
from meshwright.costs.measured.measured_costs import MeasuredCosts
from meshwright.costs.roofline import UNCERTAINTY, Roofline
from meshwright.costs.step.profile import StepFit, Width, packaged_step_profile
from meshwright.costs.step.step_costs import StepConstants, StepCosts, component
from meshwright.ir.table import Work
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.slot import resolve
from meshwright.specs.units import format_seconds

# Which of the kernel tables' float8 curves prices a recipe; casts are counted apart.
FLOAT8_CURVES: Mapping[str, str] = {
    "": "fp8", "tensorwise": "fp8", "rowwise": "fp8", "mxfp8": "fp8", "blockwise": "fp8_block",
}  # fmt: skip
OVERLAP_WORDS: Mapping[str, str] = {
    "reduce": "the reduction of gradients",
    "gather": "the gathering of parameters",
    "tp": "tensor-parallel exchanges",
    "ep": "tokens to experts and back",
}


class NamedCosts(CostModel, CommunicationModel, Protocol):
    """What fills the slot `cluster.costs`: a function of a cluster gives seconds of works, and of messages."""


@dataclass(frozen=True, eq=False)
class Pricing:
    """How the steps of one plan are priced on one cluster.

    Attributes:
        costs: of computes and of messages.
        assumptions: what the prediction rests on, for people.
        step_s: seconds of a step that no instruction takes: data, norm of the gradient, the host.
        width: of the interval, by traits of the plan; None where every cost has an interval of its own.
        least_width: relative half width that the interval has at least.
    """

    costs: StepCosts | Roofline | GpuKernels | MeasuredCosts | NamedCosts
    assumptions: tuple[str, ...]
    step_s: float = 0.0
    width: Width | None = None
    least_width: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Were steps measured on a relative of the device?"""
        return isinstance(self.costs, StepCosts) and not self.costs.kernels.is_borrowed

    def parts(self, work: Work) -> dict[str, float]:
        """Device seconds of a work by kind of kernel; nothing where they are measured as a whole."""
        if isinstance(self.costs, StepCosts):
            return self.costs.parts(work)
        found: dict[str, float] = {}
        if isinstance(self.costs, Roofline):
            for operator in work.operators:
                kind = component(operator)
                seconds = self.costs.operator_s(operator, work.dtype, self.costs.cluster.devices[0])
                found[kind] = found.get(kind, 0.0) + seconds * operator.count
        return found


def step_costs(plan: Plan, cluster: ClusterSpec, constants: StepConstants) -> StepCosts:
    """The cost model of a plan's steps. Raises SpecError for devices without a measured relative."""
    links = NcclCollectives(cluster)
    kernels = _kernels(cluster.devices[0], FLOAT8_CURVES[plan.float8])
    return StepCosts(kernels, links, constants, plan.software_class)


@cache
def _kernels(device: DeviceSpec, recipe: str) -> GpuKernels:
    """Kernel curves of a device; kept, because they remember every shape they were asked for."""
    return GpuKernels(device, NcclCollectives(Cluster("H100")), recipe, casts="apart")


def pricing_of(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    profile: Profile | None = None,
    left_out: str = "",
    fit: StepFit | None = None,
    extrapolate: bool = False,
) -> Pricing:
    """What the plan's steps are priced with.

    Args:
        profile: of processes of this machine; None: the one in the user's cache, or their data sheet.
        left_out: a source of measured runs that the constants must not have been fitted on.
        fit: constants and widths instead of the package's.
        extrapolate: accept GPUs of a family that was never measured, by their data sheet alone.

    Raises:
        PlanError: no step was measured on a relative of the GPUs, and `extrapolate` is off.
    """
    if cluster.costs:
        named = resolve("costs", cluster.costs)(cluster)
        return Pricing(
            named, (f"works and messages cost what {cluster.costs} says",), least_width=UNCERTAINTY
        )
    if cluster.machine.price_model == "step":
        return _step_pricing(plan, cluster, fit or packaged_step_profile().without(left_out), extrapolate)
    return _process_pricing(cluster, profile)


def _process_pricing(cluster: ClusterSpec, profile: Profile | None) -> Pricing:
    """Processes of this machine, measured where it was profiled."""
    found = profile_of(cluster, profile)
    if found is None:
        return Pricing(*gpu_costs(cluster))
    return Pricing(MeasuredCosts(found, device_factors(cluster, found)), (measured_basis(found),))


def _step_pricing(plan: Plan, cluster: ClusterSpec, fit: StepFit, extrapolate: bool) -> Pricing:
    """GPUs: as whole steps were measured on their family, or by the data sheet."""
    device = cluster.devices[0]
    family = family_of(device)
    if family is not None:
        return _family_pricing(plan, cluster, family, fit)
    if not extrapolate:
        raise PlanError(
            f"no training step was ever measured on {device.name} or a relative of it",
            allowed=", ".join(sorted(packaged_step_profile().seen)),
            next="ask for a prediction by the data sheet alone: --extrapolate (extrapolate=True)",
        )
    overhead = mean(constants.step_s for constants in fit.constants.values())
    basis = f"a roofline of the data sheet of {device.name}, of which no step was ever measured"
    roofline, assumptions = roofline_of(cluster)
    lines = (*_assumptions(plan, cluster, basis, overhead), *assumptions)
    return Pricing(roofline, lines, overhead, fit.width, UNCERTAINTY)


def _family_pricing(plan: Plan, cluster: ClusterSpec, family: str, fit: StepFit) -> Pricing:
    """GPUs of a family whose kernels were measured, and mostly steps as well."""
    if load_kernel_profile(family).lender:
        costs = step_costs(plan, cluster, fit.typical)
        lines = _assumptions(
            plan, cluster, _borrowed_basis(cluster.devices[0], family), costs.between_steps_s
        )
        lines = (*lines, *costs.kernels.assumptions)
        return Pricing(costs, lines, costs.between_steps_s, fit.width)
    constants = fit.of(family)
    basis = f"kernels and messages: published measurements of {family.upper()}, times constants fitted on measured steps"
    costs = step_costs(plan, cluster, constants)
    lines = _assumptions(plan, cluster, basis, costs.between_steps_s)
    return Pricing(costs, lines, costs.between_steps_s, fit.width)


def _borrowed_basis(device: DeviceSpec, family: str) -> str:
    """For people: what a step of a chip rests on of whose family only kernels were measured."""
    return (
        f"no step of {device.name} was ever measured: few published kernels of {family.upper()}, times the median of the "
        "constants of chips on which steps were"
    )


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
    if plan.ep > 1:
        lines.append(
            f"tokens go to experts evenly; where the busiest of the {plan.ep} devices gets more, the others wait for it"
        )
    if plan.dtype == "float32":
        lines.append("in float32, in which no step was measured; bfloat16 with master_dtype float32 is usual")
    return tuple(lines)
