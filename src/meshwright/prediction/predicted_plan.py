"""One plan, tried on virtual time: lowered, verified, held against the memory there is, simulated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.costs.cost import CommunicationModel, CostModel
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.timing.replay import Wiring, replay
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.lowering.place import place
from meshwright.prediction.description import describe, sentence
from meshwright.prediction.memory_estimate import MemoryEstimate, estimate_memory
from meshwright.prediction.memory_limit import Rejection, estimated_rejection, rejection
from meshwright.prediction.step_prediction import (
    ITERATIONS,
    StepEstimate,
    StepProgram,
    estimate_of,
    period_s,
    step_program,
)
from meshwright.prediction.step_pricing import StepPricing, pricing_of
from meshwright.schedules.order import Schedule
from meshwright.simulator.pricing import Prices, price
from meshwright.simulator.simulate import run, simulate_priced
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction, weakest
from meshwright.stage.mesh import device_order
from meshwright.stage.piece import as_executed, executed_pieces

# Up to here every device has lists of its own, as in the trace of an execution; above it the data-parallel axis stays
# collapsed: its devices do the same, and nobody reads a timeline of more.
MATERIALISED_DEVICES = 16


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that fits, with what it is predicted to do.

    Attributes:
        plan, program: the decision, and what every device is told to do.
        trace: the simulated iterations; its metadata carry `step` (value, low, high, basis) and `plan` in words; on GPUs
            also `parts` of the step in seconds and `assumptions`.
        step: seconds of one iteration in the long run.
        tokens_per_s: expected tokens of a step over its seconds, of the whole cluster.
        bubble: idle share of the compute streams.
        peak_bytes: of the fullest device: on the timeline, or on GPUs what tensors take by `memory`.
        bound_bytes: what `verify` proves that no legal order exceeds, or on GPUs the worst case of `memory`.
        memory: of plans on GPUs, the estimate of every device of the pipeline.
    """

    plan: Plan
    program: Program
    trace: Trace
    step: Prediction
    tokens_per_s: float
    bubble: float
    peak_bytes: float
    bound_bytes: float
    memory: MemoryEstimate | None = None

    @property
    def description(self) -> str:
        """The plan in a few words."""
        return describe(self.plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as TOML. Raises PlanError where the file cannot be written."""
        self.plan.save(path)

    def __str__(self) -> str:
        return sentence(self)

    def __repr__(self) -> str:
        return f"<Candidate {self}>"


def evaluate(
    plan: Plan,
    cluster: ClusterSpec,
    computes: CostModel | None,
    messages: CommunicationModel | None,
    schedule: Schedule,
    *,
    iterations: int = ITERATIONS,
    extrapolate: bool = False,
) -> Candidate | Rejection:
    """Lower, verify and simulate one plan.

    Args:
        computes, messages: what works and exchanges cost; None: on GPUs, as `predict_step` prices them.
        extrapolate: then accept devices on whose relatives no step was measured.

    Returns:
        The candidate, or why it does not fit.

    Raises:
        PlanError, ScheduleError, ProgramError: the plan cannot be lowered or priced, or its program is not legal.
    """
    if computes is None or messages is None:
        return _evaluate_on_gpus(plan, cluster, schedule, iterations, extrapolate)
    lowered = lower(as_executed(plan), schedule, pieces=executed_pieces(plan))
    program = materialised(lowered, plan.num_devices)
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


def _evaluate_on_gpus(
    plan: Plan, cluster: ClusterSpec, schedule: Schedule, iterations: int, extrapolate: bool
) -> Candidate | Rejection:
    """The same with the prices of training steps; memory is judged first, as it needs no program."""
    pricing = pricing_of(plan, cluster, extrapolate=extrapolate)
    memory = estimate_memory(plan, cluster, schedule)
    missing = estimated_rejection(plan, memory, cluster.memory_bytes)
    if missing is not None:
        return missing
    made = step_program(plan, cluster, schedule)
    made = replace(made, wiring=verify(made.wiring.program, host=cluster.devices[0].host).wiring)
    said = {"plan": describe(plan), "assumptions": list(pricing.assumptions)}
    trace, found = predict_on_gpus(made, pricing, iterations, said)
    tokens_per_s = plan.workload.tokens_per_step / found.step.value
    return Candidate(
        plan, made.wiring.program, trace, found.step, tokens_per_s, metrics.bubble(trace), memory.allocated_bytes,
        memory.upper_bytes + memory.context_bytes, memory,
    )  # fmt: skip


def predict_on_gpus(
    made: StepProgram, pricing: StepPricing, iterations: int, metadata: Mapping[str, Any]
) -> tuple[Trace, StepEstimate]:
    """The simulated iterations of a step's program, and the very estimate of `predict_step`.

    The step's overhead lies between the iterations, so that they follow each other at the step's distance; no row shows
    it. The trace has no memory curves: what GPUs hold is `estimate_memory`'s to say. Its metadata carry step and parts.
    """
    prices = made.priced(pricing.costs)
    times = replay(
        made.wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=iterations, host="asynchronous"
    )  # fmt: skip
    trace = Trace(made.wiring.program, *times, engine="max-plus")
    period = metrics.period_s(trace) if iterations == ITERATIONS else period_s(made.wiring, prices)
    found = estimate_of(made, prices, pricing, period)
    posted, start, end = (time + pricing.step_s * np.arange(iterations)[:, None] for time in times)
    step = {**_said(found.step), "overhead": pricing.step_s}
    told = {**metadata, "step": step, "parts": dict(found.parts)}
    return replace(trace, posted_s=posted, start_s=start, end_s=end, metadata=told), found


def _said(step: Prediction) -> dict[str, Any]:
    return {"value": step.value, "low": step.low, "high": step.high, "basis": step.basis}


def predict(
    wiring: Wiring, prices: Prices, iterations: int, host: str, metadata: Mapping[str, Any]
) -> tuple[Trace, Prediction]:
    """The simulated iterations and the step with its interval; the trace's metadata carry the step, too."""
    trace = simulate_priced(wiring, prices, iterations=iterations, host=host, metadata=metadata)
    step = interval_of_step(wiring, prices, metrics.period_s(trace), iterations, host)
    return replace(trace, metadata={**trace.metadata, "step": _said(step)}), step


def materialised(program: Program, num_devices: int) -> Program:
    """Every device with its own list where there are few, otherwise as it is."""
    if num_devices > MATERIALISED_DEVICES:
        return program
    for axis in program.axes:
        program = program.expand(axis.name)
    return program


def interval_of_step(
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
