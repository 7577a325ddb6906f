"""predict_step: the seconds of one training step of a plan on a cluster of GPUs, by its program on virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.costs.roofline import Roofline
from meshwright.costs.step.profile import StepFit, packaged_step_profile
from meshwright.costs.step.step_costs import StepConstants, StepCosts
from meshwright.ir.judge import metrics
from meshwright.ir.table import Kind
from meshwright.ir.timing.replay import Wiring, replay, wire
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.lowering.place import Placement, place
from meshwright.prediction.step_pricing import StepPricing, pricing_of, step_costs
from meshwright.prediction.step_trait import step_basis, step_traits
from meshwright.schedules.order import Schedule, registered
from meshwright.simulator.pricing import Prices, price
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Basis, Prediction
from meshwright.stage.mesh import device_order
from meshwright.stage.piece import num_pieces

ITERATIONS = 3  # the first fills the pipeline; the period is measured from the second on
EXTRAPOLATED_WIDER = 1.5  # intervals of what was extrapolated, against what was fitted
MEASURED_DTYPES = ("bfloat16", "float16")  # in which measured steps ran; float8 recipes cast from the first
INSIDE, OVERHEAD, WAITING = "exchanges inside, host", "step overhead", "waiting"


@dataclass(frozen=True, eq=False)
class StepProgram:
    """A plan's step, ready to be priced: its quotient program, wired, on the devices of a cluster."""

    plan: Plan
    cluster: ClusterSpec
    wiring: Wiring
    placement: Placement

    def priced(self, costs: StepCosts | Roofline) -> Prices:
        """What its rows cost; not which links they occupy, as steps are predicted without contention."""
        return price(self.wiring, costs, costs, self.placement, has_demands=False)


@dataclass(frozen=True, eq=False)
class StepEstimate:
    """What a step is predicted to take.

    Attributes:
        step: seconds of one step in the long run, with its 80 % interval and basis.
        parts: seconds of the busiest device by kind of work: what its computes are made of, what its exchanges take
            (beside computes or not), the step's fixed overhead, and "waiting", in which its compute stream idles.
        num_rows: instructions that were simulated.
    """

    step: Prediction
    parts: Mapping[str, float]
    num_rows: int


def step_program(plan: Plan, cluster: ClusterSpec, schedule: Schedule | None = None) -> StepProgram:
    """Lower a plan to the finest pieces that matter, and place it.

    Raises PlanError and ScheduleError as `lowering.lower`; PlanError where nobody knows the schedule.
    """
    chosen = schedule or registered().get(plan.schedule)
    if chosen is None:
        raise PlanError(
            f"the plan's schedule {plan.schedule!r} is not registered",
            allowed=", ".join(registered()),
            next="pass the schedule itself",
        )
    program = lower(plan, chosen, pieces=num_pieces(plan))
    return StepProgram(plan, cluster, wire(program), place(program, cluster, device_order(plan)))


def simulated_s(made: StepProgram, constants: StepConstants) -> float:
    """Seconds of one step at these constants."""
    costs = step_costs(made.plan, made.cluster, constants)
    return period_s(made.wiring, made.priced(costs)) + constants.step_s


def period_s(wiring: Wiring, prices: Prices) -> float:
    """Seconds between the ends of successive iterations, without contention: exchanges that could meet on a link have
    one stream, or their contention is in the fitted factors."""
    times = replay(
        wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=ITERATIONS, host="asynchronous"
    )  # fmt: skip
    return metrics.period_s(Trace(wiring.program, *times, engine="max-plus"))


def predict_step(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    left_out: str = "",
    fit: StepFit | None = None,
    schedule: Schedule | None = None,
    extrapolate: bool = False,
) -> StepEstimate:
    """Predict the seconds of a training step.

    Args:
        left_out: a source of measured runs that the constants must not have been fitted on.
        fit: constants and widths instead of the package's.
        schedule: instead of the registered one of the plan's name.
        extrapolate: accept devices of a family that was never measured, by their data sheet alone.

    Raises:
        PlanError: the plan cannot be lowered; the device or its format was never seen, and `extrapolate` is off.
    """
    pricing = pricing_of(plan, cluster, left_out=left_out, fit=fit, extrapolate=extrapolate)
    made = step_program(plan, cluster, schedule)
    prices = made.priced(pricing.costs)
    return estimate_of(made, prices, pricing, period_s(made.wiring, prices))


def estimate_of(made: StepProgram, prices: Prices, pricing: StepPricing, period: float) -> StepEstimate:
    """The step of a program that was priced and run already; `period` is the seconds between its iterations' ends."""
    parts = _parts(made, prices, pricing, period)
    basis = _basis(made.plan, made.cluster, pricing)
    width = pricing.width.at(step_traits(made.plan, parts))
    if basis != "interpolated":
        width = max(width * EXTRAPOLATED_WIDER, pricing.least_width)
    step = Prediction.within(period + pricing.step_s, min(width, 1.0), basis)
    return StepEstimate(step, parts, made.wiring.program.num_rows)


def _basis(plan: Plan, cluster: ClusterSpec, pricing: StepPricing) -> Basis:
    """What the prediction rests on: a format in which no step ran is no better than extrapolated."""
    if not pricing.is_measured:
        return "never seen"
    if plan.dtype not in MEASURED_DTYPES:
        return "extrapolated"
    return step_basis(plan, cluster, packaged_step_profile())


def _parts(made: StepProgram, prices: Prices, pricing: StepPricing, period: float) -> dict[str, float]:
    """Seconds by kind on the list whose computes take longest."""
    program = made.wiring.program
    is_compute = program.kinds == Kind.COMPUTE
    seconds = prices.seconds[prices.cost_of_row]
    busy = np.bincount(
        program.list_of_row[is_compute], weights=seconds[is_compute], minlength=program.num_lists
    )
    device = int(np.argmax(busy))
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    found: defaultdict[str, float] = defaultdict(float)
    names = [effect.name for effect in program.tables.effects]
    keys = np.stack([program.columns.effect[rows], program.columns.work[rows], prices.cost_of_row[rows]])
    kinds, counts = np.unique(keys, axis=1, return_counts=True)
    for (effect, work, cost), count in zip(kinds.T.tolist(), counts.tolist(), strict=True):
        total = prices.costs[cost].seconds * count
        if work < 0:
            found[names[effect]] += total
            continue
        inside = pricing.parts(program.tables.works[work])
        for kind, each in inside.items():
            found[kind] += each * count
        found[INSIDE] += total - sum(inside.values()) * count
    found[OVERHEAD] = pricing.step_s
    found[WAITING] = max(0.0, period - float(busy[device]))
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return {name: value for name, value in ordered if value > 0}
