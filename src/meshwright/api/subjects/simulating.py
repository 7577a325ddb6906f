"""`simulate` and `lower`: a program on virtual time."""

from __future__ import annotations

import sys
from typing import Any

from meshwright import catalog
from meshwright.api.subjects.keywords import check_keywords
from meshwright.api.subjects.subject import Subject, subject
from meshwright.ir.program import Program
from meshwright.ir.trace import Trace
from meshwright.specs.error import SpecError
from meshwright.specs.plan.plan import Plan


def simulate(what: Any = None, *, iterations: int | None = None, **choices: Any) -> Trace:
    """Run a plan, a program or a schedule on virtual time.

    Args:
        what: as in `subject`, or a Subject; a bare schedule costs `times` (1, 1, 1 seconds).
        iterations: of the program; plans run three, so that the last is past the cold start, schedules one.
        choices: the other arguments of `subject`, such as ``stages=4, microbatches=8``.

    Returns a trace (shown as a timeline in notebooks); of a plan its metadata carry `step` (value, low, high, basis), and
    on GPUs `parts` of it. Raises as `subject` does, and ProgramError.
    """
    from meshwright.simulator.simulate import simulate_program

    check_keywords("simulate", choices, simulate, subject)
    made = what if isinstance(what, Subject) else subject(what, **choices)
    if made.computes is None or made.messages is None:
        raise SpecError(f"{made.label} has no costs", allowed="times=(F, I, W)")
    said = {"label": made.label, "assumptions": list(made.assumptions)}
    if made.predicted is not None:
        trace = made.predicted.trace(iterations, said)
    else:
        trace = simulate_program(
            made.program,
            made.computes,
            made.messages,
            iterations=iterations or 1,
            host=made.host,
            metadata=said,
        )
    show_in_notebooks()
    return trace


def lower(plan: Plan) -> Program:
    """The program of one training step of a plan."""
    from meshwright.lowering import lower as lower_plan

    return lower_plan(plan, catalog.find_schedule(plan.schedule))


def show_in_notebooks() -> None:
    """Traces show themselves as timelines where a notebook runs."""
    if "IPython" in sys.modules:
        from meshwright.reports.notebook import show_traces_in_notebooks

        show_traces_in_notebooks()
