"""A load as a plan says it goes beside what a server did: the table, and what it means."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from meshwright.cli.frame.output import table_of
from meshwright.evidence.load_comparison import LoadComparison, LoadFigure
from meshwright.specs.units import format_seconds

NAMES = {
    "ttft_s": "first token", "tpot_s": "per token", "itl_s": "between tokens", "e2e_s": "whole",
    "output_tokens_per_s": "tokens/s out", "input_tokens_per_s": "tokens/s in", "goodput_per_s": "good requests/s",
}  # fmt: skip


def load_comparison_rows(found: LoadComparison) -> list[dict[str, str]]:
    """A row for each figure."""
    return [_row(each, found.plan) for each in found.figures]


def load_comparison_view(found: LoadComparison) -> list[Any]:
    """For the terminal."""
    return [table_of(load_comparison_rows(found)), *(Text(line, overflow="fold") for line in found.meaning)]


def _row(each: LoadFigure, plan: str) -> dict[str, str]:
    name, _, share = each.name.partition(" ")
    return {
        "figure": f"{NAMES[name]} {share}".strip(),
        f"simulated ({plan})": _shown(name, each.predicted),
        "measured": _shown(name, each.measured),
        "ratio": "-" if each.ratio is None else f"{each.ratio:.2f}",
    }


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return format_seconds(value) if name.endswith("_s") and not name.endswith("per_s") else f"{value:,.1f}"
