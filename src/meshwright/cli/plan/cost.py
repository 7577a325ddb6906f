"""What `meshwright plan` shows of money, energy, failures and the time of a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.cli.frame.output import table_of
from meshwright.cli.plan.asked import Asked
from meshwright.planner.advice.goodput import Checkpointing, Duration, best_checkpointing, duration
from meshwright.planner.advice.running_cost import cost_assumptions, running_cost
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.units import format_count, format_seconds


def costs_data(each: Predicted, asked: Asked, cluster: ClusterSpec) -> dict[str, Any]:
    """Of one plan: dollars and kWh per billion tokens (null where unknown), goodput, and the time of the budget."""
    cost = running_cost(cluster, each.step.value, each.plan.workload.tokens_per_step)
    best, takes = rhythm(each, asked)
    return {
        "usd_per_billion_tokens": cost.usd_per_billion_tokens,
        "kwh_per_billion_tokens": cost.kwh_per_billion_tokens,
        "goodput": best.goodput if best else None,
        "checkpoint_every_steps": best.every_steps if best else None,
        "checkpoint_interval_s": best.interval_s if best else None,
        "time_to_tokens_s": takes.expected_s if takes else None,
        "time_to_tokens_without_failures_s": takes.without_failures_s if takes else None,
    }


def rhythm(each: Predicted, asked: Asked) -> tuple[Checkpointing | None, Duration | None]:
    """The best checkpointing, where failures were given; the duration, where tokens were."""
    plan, step_s = each.plan, each.step.value
    best = best_checkpointing(asked.failures, plan.num_devices, step_s) if asked.failures else None
    if asked.num_tokens is None:
        return best, None
    work = plan.workload.tokens_per_step
    return best, duration(asked.num_tokens, step_s, work, plan.num_devices, asked.failures)


def costs_lines(cluster: ClusterSpec, asked: Asked) -> list[str]:
    """What these numbers rest on."""
    lines = list(cost_assumptions(cluster))
    if asked.failures is not None:
        job = format_seconds(asked.failures.job_mtbf_s(cluster.num_devices))
        lines.append(
            f"failures come independently, one of {cluster.num_devices} devices every {job}, during saving "
            "and restarting, too; checkpoints at the best interval, and training stops for them"
        )
    return lines


def costs_view(plans: Mapping[Any, Predicted], asked: Asked, cluster: ClusterSpec) -> list[Any]:
    """A table of what the plans cost and how long they take, by place; columns only where they are known."""
    if not asked.shows_costs:
        return []
    rows = [{"": place, **_costs_row(each, asked, cluster)} for place, each in plans.items()]
    return [table_of(rows)] if len(rows[0]) > 1 else []


def _costs_row(each: Any, asked: Asked, cluster: ClusterSpec) -> dict[str, Any]:
    data = costs_data(each, asked, cluster)
    usd, kwh = data["usd_per_billion_tokens"], data["kwh_per_billion_tokens"]
    row: dict[str, Any] = {}
    if usd is not None:
        row["USD/B tokens"] = f"{usd:,.0f}"
    if kwh is not None:
        row["kWh/B tokens"] = f"{kwh:,.0f}"
    if data["goodput"] is not None:
        row["goodput"] = f"{100 * data['goodput']:.1f} %"
        row["save every"] = f"{format_seconds(data['checkpoint_interval_s'])}"
    if asked.num_tokens is not None:
        told = format_count(asked.num_tokens)
        row[f"{told} tokens"] = format_seconds(data["time_to_tokens_s"])
        if asked.failures is not None:
            row["without failures"] = format_seconds(data["time_to_tokens_without_failures_s"])
    return row
