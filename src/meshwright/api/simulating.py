"""`simulate` and `lower`: a program on virtual time."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from meshwright import catalog
from meshwright.api.subject import Subject, subject
from meshwright.ir import metrics
from meshwright.ir.program import Program
from meshwright.ir.replay import Wiring, wire
from meshwright.ir.trace import Trace
from meshwright.specs.error import SpecError
from meshwright.specs.plan import Plan

PLAN_ITERATIONS = 3  # the last of them is past the first one's cold start


def simulate(what: Any = None, *, iterations: int | None = None, **choices: Any) -> Trace:
    """Run a plan, a program or a schedule on virtual time.

    Args:
        what: as in `subject`, or a Subject; a bare schedule costs `times` (1, 1, 1 seconds).
        iterations: of the program; plans run three, so that the last is past the cold start, schedules one.
        choices: the other arguments of `subject`, such as ``stages=4, microbatches=8``.

    Returns a trace (shown as a timeline in notebooks). Raises as `subject` does, and ProgramError.
    """
    from meshwright.simulator.simulate import simulate_program

    made = what if isinstance(what, Subject) else subject(what, **choices)
    if made.computes is None or made.messages is None:
        raise SpecError(f"{made.label} has no costs", allowed="times=(F, I, W)")
    num_iterations = iterations or (PLAN_ITERATIONS if made.plan is not None else 1)
    wiring = wire(made.program)
    trace = simulate_program(
        wiring, made.computes, made.messages, placement=made.placement, host=made.host, iterations=num_iterations,
        metadata={"label": made.label, "assumptions": list(made.assumptions)},
    )  # fmt: skip
    if made.plan is not None:
        trace = replace(trace, metadata={**trace.metadata, "step": _step(wiring, made, trace)})
    show_in_notebooks()
    return trace


def _step(wiring: Wiring, made: Subject, trace: Trace) -> dict[str, Any]:
    """The step with its interval and basis, as traces carry it."""
    from meshwright.planner.candidate import step_prediction
    from meshwright.simulator.pricing import price

    assert made.computes is not None and made.messages is not None, "simulate has checked it"
    prices = price(wiring, made.computes, made.messages, made.placement)
    step = step_prediction(wiring, prices, metrics.period_s(trace), trace.num_iterations, made.host)
    return {"value": step.value, "low": step.low, "high": step.high, "basis": step.basis}


def lower(plan: Plan) -> Program:
    """The program of one training step of a plan."""
    from meshwright.lowering import lower as lower_plan

    return lower_plan(plan, catalog.find_schedule(plan.schedule))


def show_in_notebooks() -> None:
    """Traces show themselves as timelines where a notebook runs."""
    if "IPython" in sys.modules:
        from meshwright.reports.notebook import show_traces_in_notebooks

        show_traces_in_notebooks()
