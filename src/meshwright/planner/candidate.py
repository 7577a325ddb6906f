"""One plan, tried on virtual time: lowered, verified, held against the memory there is, simulated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.costs.cost import CommunicationModel, CostModel
from meshwright.ir import metrics
from meshwright.ir.program import Program
from meshwright.ir.replay import Wiring
from meshwright.ir.trace import Trace
from meshwright.ir.verify import verify
from meshwright.lowering.lower import lower
from meshwright.lowering.mesh import device_order
from meshwright.lowering.place import place
from meshwright.planner.memory_limit import Rejection, describe, rejection
from meshwright.schedules.order import Schedule
from meshwright.simulator.pricing import Prices, price
from meshwright.simulator.simulate import run, simulate_priced
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import Plan
from meshwright.specs.prediction import Prediction, weakest
from meshwright.specs.units import format_bytes, format_seconds

ITERATIONS = 3  # the first fills the pipeline; the period is measured from the second on
# Up to here every device has lists of its own, as in the trace of an execution; above it the data-parallel axis stays
# collapsed: its devices do the same, and nobody reads a timeline of more.
MATERIALISED_DEVICES = 16


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that fits, with what it is predicted to do.

    Attributes:
        plan, program: the decision, and what every device is told to do.
        trace: the simulated iterations; its metadata carry `step` (value, low, high, basis) and `plan` in words.
        step: seconds of one iteration in the long run.
        tokens_per_s: expected tokens of a step over its seconds, of the whole cluster.
        bubble: idle share of the compute streams.
        peak_bytes: on the timeline, of the fullest device.
        bound_bytes: what `verify` proves that no legal order exceeds.
    """

    plan: Plan
    program: Program
    trace: Trace
    step: Prediction
    tokens_per_s: float
    bubble: float
    peak_bytes: float
    bound_bytes: float

    @property
    def description(self) -> str:
        """The plan in a few words."""
        return describe(self.plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as TOML. Raises PlanError where the file cannot be written."""
        self.plan.save(path)

    def __str__(self) -> str:
        low, high = format_seconds(self.step.low), format_seconds(self.step.high)
        return (
            f"{self.description}: step {format_seconds(self.step.value)} ({low} to {high}, {self.step.basis}), "
            f"{self.tokens_per_s:,.0f} tokens/s, bubble {self.bubble:.1%}, peak {format_bytes(self.peak_bytes)}"
        )

    def __repr__(self) -> str:
        return f"<Candidate {self}>"


def evaluate(
    plan: Plan,
    cluster: ClusterSpec,
    computes: CostModel,
    messages: CommunicationModel,
    schedule: Schedule,
    *,
    iterations: int = ITERATIONS,
) -> Candidate | Rejection:
    """Lower, verify and simulate one plan.

    Returns:
        The candidate, or why it does not fit.

    Raises:
        PlanError, ScheduleError, ProgramError: the plan cannot be lowered, or its program is not legal.
    """
    program = materialised(lower(plan, schedule), plan.num_devices)
    host = cluster.devices[0].host
    verified = verify(program, host=host)
    placement = place(program, cluster, device_order(plan))
    missing = rejection(plan, verified, placement)
    if missing is not None:
        return missing
    prices = price(verified.wiring, computes, messages, placement)
    trace, step = predict(verified.wiring, prices, iterations, host, {"plan": describe(plan)})
    return Candidate(
        plan,
        program,
        trace,
        step,
        plan.workload.tokens_per_step / step.value if step.value > 0 else float("inf"),
        metrics.bubble(trace),
        metrics.peak_bytes(trace),
        verified.peak_of("device"),
    )


def predict(
    wiring: Wiring, prices: Prices, iterations: int, host: str, metadata: Mapping[str, Any]
) -> tuple[Trace, Prediction]:
    """The simulated iterations and the step with its interval; the trace's metadata carry the step, too."""
    trace = simulate_priced(wiring, prices, iterations=iterations, host=host, metadata=metadata)
    step = step_prediction(wiring, prices, metrics.period_s(trace), iterations, host)
    said = {"value": step.value, "low": step.low, "high": step.high, "basis": step.basis}
    return replace(trace, metadata={**trace.metadata, "step": said}), step


def materialised(program: Program, num_devices: int) -> Program:
    """Every device with its own list where there are few, otherwise as it is."""
    if num_devices > MATERIALISED_DEVICES:
        return program
    for axis in program.axes:
        program = program.expand(axis.name)
    return program


def step_prediction(
    wiring: Wiring, prices: Prices, period_s: float, iterations: int, host: str
) -> Prediction:
    """The step with its interval: all costs at their lowest, and all at their highest.

    Times are max-plus in the costs, so the step lies between these two whenever every cost lies in its own interval,
    whichever path is critical; errors of one kind of pass are not independent, so nothing is pooled. The basis is the
    weakest of all costs that take time.
    """
    ends = [period_s]
    for sign in (-1.0, 1.0):
        costs = tuple(cost.scaled(max(0.0, 1.0 + sign * cost.uncertainty)) for cost in prices.costs)
        _, times = run(wiring, replace(prices, costs=costs), iterations=iterations, host=host)
        ends.append(metrics.period_s(Trace(wiring.program, *times, engine="max-plus")))
    basis = weakest(*(cost.basis for cost in prices.costs if cost.seconds > 0))
    return Prediction(period_s, min(ends), max(ends), basis)
