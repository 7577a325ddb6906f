"""A load that was served as texts for people: a row of a table, an objective in words."""

from __future__ import annotations

from typing import Any

from meshwright.planner.serving.served_plan import ENOUGH, ServedPlan, fewest_devices
from meshwright.planner.serving.serving_search import ServingPlans
from meshwright.serving.loop.report import LatencyObjective
from meshwright.specs.units import counted, format_seconds


def served_row(each: ServedPlan) -> dict[str, Any]:
    """A plan under a load: the decision, how much of it was good, latencies, and what it costs where that is known."""
    report = each.report
    row: dict[str, Any] = {
        "plan": each.plan.name,
        "GPUs": each.plan.num_devices,
        "batch": each.plan.max_batch_tokens,
        "sequences": each.plan.max_sequences,
        "good": share_text(report.good_share),
        "good/s": f"{report.goodput_per_s:.2f}",
        "tokens/s": f"{report.output_tokens_per_s:,.0f}",
    }
    for name, figures in (("TTFT", report.ttft_s), ("TPOT", report.tpot_s)):
        for share in ("p50", "p99"):
            row[f"{name} {share}"] = (
                format_seconds(figures[share]) if figures[share] == figures[share] else "-"
            )
    for name, value in (
        ("USD/M tokens", each.usd_per_million_tokens),
        ("kWh/M tokens", each.kwh_per_million_tokens),
    ):
        if value is not None:
            row[name] = f"{value:.3g}" if value < 1 else f"{value:.2f}"
    return row


def share_text(share: float, digits: int = 1) -> str:
    """Per cent."""
    return f"{100 * share:.{digits}f} %"


def objective_words(objective: LatencyObjective) -> str:
    """Within which times a request is good."""
    named = (("TTFT", objective.ttft_s), ("TPOT", objective.tpot_s), ("end to end", objective.e2e_s))
    return ", ".join(f"{name} {format_seconds(value)}" for name, value in named if value != float("inf"))


def answer_lines(found: ServingPlans) -> list[str]:
    """How many devices are enough; or that none of these is, and what was the best."""
    fewest = fewest_devices(found)
    if fewest is not None:
        devices = counted(fewest.plan.num_devices, "device")
        return [f"enough for {share_text(ENOUGH, 0)} of the requests: {devices}, as {fewest.plan.name}"]
    best = max(found, key=lambda each: each.report.good_share)
    times = ", ".join(
        f"{name} {format_seconds(min(getattr(each.report, field)['p50'] for each in found))}"
        for name, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"))
    )
    return [
        f"not enough: at most {share_text(best.report.good_share)} of the requests are good ({best.plan.name}); the shortest "
        f"medians are {times}: take more or other devices, or a wider --slo"
    ]
