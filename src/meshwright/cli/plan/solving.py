"""What `meshwright plan` shows of a number that it solved for, and of a frontier of step and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from meshwright.api.plans.plan_text import plan_row
from meshwright.cli.frame.output import Result, table_of
from meshwright.cli.plan.asked import Asked
from meshwright.cli.plan.assumed import assumed
from meshwright.cli.plan.cost import costs_data, costs_lines, costs_view, rhythm
from meshwright.cli.plan.view import assumed_data, explained, plan_data, told_lines
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.solve import Solution
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.units import counted, format_count, format_seconds


def solution_result(solution: Solution, asked: Asked, data: Mapping[str, Any], view: Sequence[Any]) -> Result:
    """The number first, what was tried, then the plans found with it.

    Args:
        data, view: what the command shows of a search.
    """
    # what is shorter than a sequence that fits is no news
    shown = [each for each in solution.attempts if solution.what != "seq" or each.value >= solution.value]
    tried = ", ".join(f"{each.value:,} ({each.told})" for each in shown)
    lines = [f"tried: {tried}", *solution.notes]
    solved = {
        "solve": solution.what,
        "value": solution.value,
        "attempts": [{"value": a.value, "does": a.does, "told": a.told} for a in solution.attempts],
        "notes": list(solution.notes),
    }
    head = [Text(_said(solution, asked), style="bold"), *(Text(line, overflow="fold") for line in lines)]
    best = solution.found[0]
    return Result(
        {**solved, **data}, [*head, *view], {".toml": best.save, ".csv": solution.found.to_csv},
        explanation=[*best.assumptions, *solution.found.assumptions],
    )  # fmt: skip


def _said(solution: Solution, asked: Asked) -> str:
    """The answer in one line."""
    if solution.what == "seq":
        return f"{solution.value:,} tokens are the longest sequence for which a plan fits"
    if solution.what == "microbatch":
        return f"{solution.value} sequences are the largest microbatch for which a plan fits"
    if asked.deadline_s is None:
        return f"{solution.value} devices, in whole nodes, are the fewest on which a plan fits"
    takes = min(_takes_s(each, asked) for each in solution.found)
    tokens, deadline = format_count(asked.num_tokens or 0), format_seconds(asked.deadline_s or 0.0)
    return f"{solution.value} devices read {tokens} tokens in {format_seconds(takes)}; the deadline is {deadline}"


def _takes_s(each: Any, asked: Asked) -> float:
    takes = rhythm(each, asked)[1]
    return float("inf") if takes is None else takes.expected_s


def frontier_result(found: Plans, asked: Asked, cluster: ClusterSpec, limit: int | None = None) -> Result:
    """Every member, the fastest first, with what its memory saves in and costs of time."""

    best = found[0]
    lines = assumed((*found.assumptions, *best.assumptions, *costs_lines(cluster, asked)), cluster, limit)
    data: dict[str, Any] = {
        "plans": [{**plan_data(each), **costs_data(each, asked, cluster)} for each in found],
        "num_candidates": found.num_candidates,
        "num_evaluated": found.num_evaluated,
        "num_on_frontier": found.num_on_frontier,
        "num_simulated": found.num_simulated,
        **assumed_data(lines),
    }
    plan = best.plan
    head = f"{plan.model.name} on {plan.cluster}, {plan.workload.global_batch} sequences a step: step against memory"
    rows = [{**plan_row(place, each), "slower": _slower(best, each)} for place, each in enumerate(found, 1)]
    counts = (
        f"{counted(found.num_candidates, 'candidate')}, {found.num_evaluated:,} fit, {found.num_on_frontier} on the frontier "
        f"of the closed form; {found.num_simulated} simulated, of which {len(found)} no other beats in both"
    )
    view = [
        Text(head, style="bold"), table_of([_narrow(each) for each in rows]),
        *costs_view(dict(enumerate(found, 1)), asked, cluster),
        *told_lines([f"{counts}; {len(lines)} assumptions: --explain"]),
    ]  # fmt: skip
    return Result(data, view, {".toml": best.save, ".csv": found.to_csv}, explanation=explained(data))


def _slower(best: Predicted, each: Predicted) -> str:
    return f"{100 * (each.step.value / best.step.value - 1):.1f} %"


def _narrow(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that matter for the choice."""
    return {name: row[name] for name in ("", "plan", "step", "slower", "memory") if name in row}
