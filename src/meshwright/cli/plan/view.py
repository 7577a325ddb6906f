"""How plans are shown: the table, why the first is the first, how it was found; and the same for --json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from meshwright.api.plans.plan_text import plan_row
from meshwright.api.plans.sayable import frameworks
from meshwright.cli.frame.output import NarrowingTable
from meshwright.cli.plan.asked import Asked
from meshwright.cli.plan.assumed import assumed, told
from meshwright.cli.plan.cost import costs_data, costs_lines
from meshwright.cli.plan.remark import why
from meshwright.planner.search.plans import Plans
from meshwright.prediction.predicted import Predicted
from meshwright.reports.page.plan_page import Assumed
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.file import plan_text


def assumed_lines(found: Plans) -> tuple[str, ...]:
    """What the best plan's prediction rests on."""
    return tuple(line for line in found[0].assumptions if line not in found.assumptions)


def plans_data(
    found: Plans,
    shown: Mapping[int, Predicted],
    asked: Asked,
    cluster: ClusterSpec,
    limit_bytes: int | None = None,
) -> dict[str, Any]:
    """For --json: the shown plans with their places, how the search went, what all rests on."""
    data: dict[str, Any] = {
        "plans": [
            {"place": place, **plan_data(each, limit_bytes), **costs_data(each, asked, cluster)}
            for place, each in shown.items()
        ],
        "num_candidates": found.num_candidates,
        "num_evaluated": found.num_evaluated,
        "num_excluded_by_bound": found.num_excluded_by_bound,
        "num_simulated": len(found),
        "search_s": found.search_s,
        "simulation_s": found.simulation_s,
        "is_complete": found.is_complete,
        "wall_s": found.wall_s,
        "optimality_gap": found.optimality_gap,
        "varied": dict(found.varied),
        "why": dict(why(shown)),
        "drawn_steps_s": list(found[0].drawn_steps_s),
        "passed_over": [{**plan_data(each.plan, limit_bytes), "why": each.why} for each in found.passed_over],
    }
    sentences = (*found.assumptions, *assumed_lines(found), *costs_lines(cluster, asked))
    return {**data, **assumed_data(assumed(sentences, cluster, limit_bytes))}


def assumed_data(lines: Sequence[Assumed]) -> dict[str, Any]:
    """What was assumed and what to type for another, for --json."""
    flags = {each.sentence: each.flag for each in lines}
    return {"assumptions": list(flags), "overridden_by": flags}


def plan_data(each: Predicted, limit_bytes: int | None = None) -> dict[str, Any]:
    return {
        "step_time_s": each.step.value,
        "step_time_interval_s": [each.step.low, each.step.high],
        "basis": each.step.basis,
        "level": each.level,
        "composed_step_time_s": composed_s(each),
        "not_composable": list(each.not_composable),
        "exchanges": {name: one._asdict() for name, one in each.exchanges.items()},
        "tokens_per_s_per_device": each.tokens_per_s / each.plan.num_devices,
        "peak_memory_bytes": each.peak_bytes,
        "worst_memory_bytes": each.bound_bytes,
        "fit_probability": each.fit_probability(limit_bytes),
        "exports": list(frameworks(each.plan, each.cluster)),
        **each.used.to_dict(),
        "bubble": each.bubble,
        "parts": dict(each.parts),
        "description": each.description,
        "plan": plan_text(each.plan),
    }


def composed_s(each: Predicted) -> float | None:
    """Seconds of the step by its stages' composed prices; None where a layer sends nothing, or nobody asked for them."""
    seconds = each.step.value if each.level == "composed" else each.composed_s
    return None if each.level == "stages" or math.isnan(seconds) else seconds


def plans_view(found: Plans, shown: Mapping[Any, Predicted], limit_bytes: int | None = None) -> list[Any]:
    """Head, and the table of these plans by their place."""
    best = found[0]
    head = (
        f"{best.plan.model.name} on {best.plan.cluster}, {best.plan.workload.global_batch} sequences a step"
    )
    rows = [plan_row(place, each, limit_bytes) for place, each in shown.items()]
    return [Text(head, style="bold"), plan_table(rows)]


def plan_table(rows: Sequence[Mapping[str, Any]]) -> NarrowingTable:
    """Rows of `plan_row`; narrow terminals do without what says least."""
    return NarrowingTable(rows, "plan", ("bubble", "MFU", "interval"))


def told_lines(lines: Iterable[str]) -> list[Any]:
    """Sentences for a terminal."""
    return [Text(line, overflow="fold") for line in lines]


def explained(data: Mapping[str, Any]) -> list[str]:
    """Of `assumed_data`: what was assumed, line by line, and what to type for another."""
    return [told(Assumed(line, flag)) for line, flag in data["overridden_by"].items()]
