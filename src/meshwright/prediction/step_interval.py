"""The interval around a predicted step: as wide as steps like it were missed, or as the costs in it are uncertain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.costs.pricing import Pricing
from meshwright.costs.step.profile import Width, packaged_step_profile
from meshwright.ir.judge import metrics
from meshwright.ir.trace import Trace
from meshwright.prediction.step_program import StepProgram
from meshwright.prediction.step_trait import step_basis, step_shares
from meshwright.simulator.pricing import Prices
from meshwright.simulator.simulate import run
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Basis, Prediction, weakest

MEASURED_DTYPES = ("bfloat16", "float16")  # in which measured steps ran; float8 recipes cast from the first


def interval_of_parts(
    made: StepProgram, pricing: Pricing, width: Width, period_s: float, parts: Mapping[str, float]
) -> Prediction:
    """The 80 % interval of steps like this one, by what they are made of; `period_s` is between ends of iterations."""
    basis = _basis(made.plan, made.cluster, pricing)
    low, high = width.ends(step_shares(made.plan, made.cluster, parts, basis))
    step_s, least = period_s + pricing.step_s, pricing.least_width
    return Prediction(step_s, step_s * min(low, 1.0 - least), step_s * max(high, 1.0 + least), basis)


def interval_of_costs(made: StepProgram, prices: Prices, trace: Trace) -> Prediction:
    """The step of a simulation, and with all costs at their lowest, and all at their highest.

    Times are max-plus in the costs, so the step lies between these two whenever every cost lies in its own interval,
    whichever path is critical; errors of one kind of pass are not independent, so nothing is pooled. The basis is the
    weakest of all costs that take time.
    """
    period_s, wiring, host = metrics.period_s(trace), made.wiring, made.cluster.machine.host
    ends = [period_s]
    for sign in (-1.0, 1.0):
        costs = tuple(cost.scaled(max(0.0, 1.0 + sign * cost.uncertainty)) for cost in prices.costs)
        _, times = run(wiring, replace(prices, costs=costs), iterations=trace.num_iterations, host=host)
        ends.append(metrics.period_s(Trace(wiring.program, *times, engine="max-plus")))
    basis = weakest(*(cost.basis for cost in prices.costs if cost.seconds > 0))
    return Prediction(period_s, min(ends), max(ends), basis)


def _basis(plan: Plan, cluster: ClusterSpec, pricing: Pricing) -> Basis:
    """What the prediction rests on: a format in which no step ran is no better than extrapolated."""
    if not pricing.is_measured:
        return "never seen"
    if plan.dtype not in MEASURED_DTYPES:
        return "extrapolated"
    return step_basis(plan, cluster, packaged_step_profile())
