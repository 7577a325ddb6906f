"""How `check` shows advice about a plan: what to know of it, and what its step gains by each change of hardware."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from meshwright.api import Check
from meshwright.cli.frame.output import table_of
from meshwright.planner.advice.hardware_change import HardwareChange
from meshwright.reports.chart.quantity import quantity

EXPLAINED = (
    "largest microbatch, longest sequence: by the memory estimate, all else of the plan as it is; not whether it is faster",
    "gains by hardware: the step of the same plan priced again with one number of the cluster changed; kernels and messages "
    "keep the efficiencies that were measured, and the plan is not searched again",
)


def advice_figures(proof: Check) -> dict[str, Any]:
    """`advice`, `hardware` and why it is `unpriced` for --json; empty where the plan does not run on GPUs."""
    return {
        "advice": [
            {
                "kind": each.kind,
                "sentence": each.sentence,
                "numbers": dict(each.numbers),
                "is_waste": each.is_waste,
            }
            for each in proof.advice
        ],
        "hardware": [change_figures(each) for each in proof.hardware],
        "unpriced": proof.unpriced,
    }


def change_figures(change: HardwareChange) -> dict[str, Any]:
    """One change of hardware for --json."""
    return {
        "name": change.name,
        "step_time_s": change.step_s,
        "gain": change.gain,
        "used_for": change.used_for,
        "keeps": change.keeps,
    }


def advice_view(proof: Check) -> list[Any]:
    """The sentences, what is wasted marked, and the table of changes."""
    if not proof.advice:
        return []
    lines: list[Any] = [Text(""), Text("advice", style="bold")]
    for each in proof.advice:
        style = "yellow" if each.is_waste else ""
        lines.append(Text(f"- {each.sentence}", style=style, overflow="fold"))
    if proof.unpriced:
        lines.append(Text(f"- no gains by hardware: {proof.unpriced}", style="dim", overflow="fold"))
    rows = [
        {
            "a change of hardware": each.name + (f" ({each.used_for})" if each.used_for else ""),
            "step": quantity(each.step_s, "s"),
            "faster by": each.percent,
        }
        for each in proof.hardware
    ]
    return [*lines, table_of(rows)] if rows else lines
