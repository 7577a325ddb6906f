"""Steps whose sequences are in groups of ranks, by algorithm: `simulate` and `plan` with --sequence-groups."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from meshwright.cli.frame.output import Result, table_of
from meshwright.prediction.description import describe
from meshwright.prediction.sequence.grouped_distribution import GroupedDistribution, GroupedSeconds
from meshwright.reports.page.report import DataTable, Report
from meshwright.specs.units import format_seconds, interval_text

BOUND = "no grouping is below"


def grouping_result(found: GroupedDistribution) -> Result:
    """The table of algorithms, what was drawn, how the numbers were made."""
    rows = grouping_rows(found)
    head = (
        f"{describe(found.plan)}: {len(found.batches)} drawn batches of {len(found.batches[0]):,} sequences, "
        f"{found.mean_tokens:,.0f} tokens a step in the mean, cut at {found.plan.workload.sequence_length:,}"
    )
    return Result(
        grouping_data(found),
        [Text(head, style="bold"), table_of(rows)],
        report=lambda: Report("Sequences in groups of ranks", head, tables=[DataTable("Algorithms", rows)]),
        explanation=explained(found),
    )


def grouping_data(found: GroupedDistribution) -> dict[str, Any]:
    """For --json."""
    return {
        "kind": "sequence groups",
        "num_batches": len(found.batches),
        "tokens_per_step": found.mean_tokens,
        "bound_s": found.bound_s,
        "once_s": found.once_s,
        "fit_error": found.fit_error,
        "algorithms": [
            {
                "name": name, "step_s": one.mean_s, "step_error_s": one.error_s, "quartiles_s": list(one.quartiles_s),
                "steps_s": list(one.seconds), "imbalance": max(one.imbalances), "speedup": found.static.mean_s / one.mean_s,
                "over_bound": one.mean_s / found.bound_s, "planning_s": max(one.planning_s),
            }
            for name, one in found.steps.items()
        ],
    }  # fmt: skip


def grouping_rows(found: GroupedDistribution) -> list[dict[str, str]]:
    """An algorithm a row, and the bound."""
    rows = [_row(found, name, one) for name, one in found.steps.items()]
    return [*rows, {"groups by": BOUND, "step": format_seconds(found.bound_s)}]


def _row(found: GroupedDistribution, name: str, one: GroupedSeconds) -> dict[str, str]:
    low, _, high = one.quartiles_s
    return {
        "groups by": name,
        "step": format_seconds(one.mean_s),
        "+-": f"{one.error_s / one.mean_s:.1%}",
        "quartiles": interval_text(format_seconds(low), format_seconds(high)),
        "tokens/s": f"{found.mean_tokens / one.mean_s:,.0f}",
        "faster": f"{found.static.mean_s / one.mean_s:.2f} x",
        "over bound": f"{one.mean_s / found.bound_s:.2f} x",
        "decided in": format_seconds(max(one.planning_s)),
    }


def explained(found: GroupedDistribution) -> list[str]:
    """What the numbers rest on."""
    costs = found.costs
    return [
        "a step is the mean of drawn batches, the busiest rank's groups one behind the other; +- is the standard error",
        f"groups are priced by a formula that was fitted to prices of this plan at every degree, and misses one of them by "
        f"{found.fit_error:.0%} at the most",
        f"a rank holds {costs.capacity_tokens:,.0f} tokens at once; {format_seconds(found.once_s)} of every step are there "
        "once (reductions, the optimizer, what lies between steps)",
        f"{next(iter(found.steps))}: one degree for all sequences, the least that holds one of the full length",
        "decided in: the slowest of the batches, on this machine; a training decides while the step before runs",
    ]
