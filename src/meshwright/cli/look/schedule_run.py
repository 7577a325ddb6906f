"""`check --run`: a schedule executed on processes of this machine, its gradients beside those of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.text import Text

from meshwright.api.subjects.schedule_execution import ITERATIONS, TOLERANCE, execute_schedule
from meshwright.cli.frame.output import DONE, REFUSED, Output, Result


def with_execution(found: Result, out: Output, schedule: str, **choices: Any) -> Result:
    """The proof's result with one line more: whether the gradients are those of one process. Exit 3 where they are not."""
    out.note("executing: one process a device, and one process alone")
    ran = execute_schedule(schedule, **choices, seed=out.seed)
    said = {
        "executed": {
            "gradients_equal": ran.is_equal,
            "difference": ran.difference,
            "tolerance": TOLERANCE,
            "num_gradients": ran.num_gradients,
            "losses": list(ran.losses),
            "expected_losses": list(ran.expected_losses),
        }
    }
    verdict, style = ("yes", "green") if ran.is_equal else ("no", "bold red")
    line = Text("  executed          ").append(verdict, style=style)
    line.append(
        f", {ran.num_gradients} gradients in {ITERATIONS} steps, at most "
        f"{ran.difference:.1e} off one process in float64"
    )
    how = "executed: a small decoder in float64 on gloo, one process a device; one process takes the whole batch at once"
    return replace(
        found,
        data={**found.data, **said},
        view=[*found.view, line],
        explanation=[*found.explanation, how],
        exit_code=DONE if ran.is_equal else REFUSED,
    )
