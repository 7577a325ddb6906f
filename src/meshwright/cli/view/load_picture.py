"""The picture of `meshwright plan --requests`: good requests of each device against time per token, of every plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.planner.serving.served_plan import ServedPlan, answers
from meshwright.planner.serving.serving_search import ServingPlans
from meshwright.reports.chart.chart import Chart, Series, chart_svg
from meshwright.reports.chart.drawing import PAGE
from meshwright.reports.page.report import DataTable, Figure, Picture, Report
from meshwright.specs.units import counted, format_seconds

WIDTH, HEIGHT = 1080, 420  # pixels, as wide as a page
BEATEN, BEST = 5, 0  # places of their colours
CROWDED = (0.15, 0.05)  # of the picture's width and height: names nearer than that are one text


def load_chart(found: ServingPlans, title: str = "") -> Chart:
    """Every plan that served the busiest time, or, where only one was asked for, the whole load; what is no answer to it is
    left out. Of those that none beats in both each is named once."""
    plans = [each for each in answers(found.ranked or found) if _tpot_s(each) == _tpot_s(each)]
    front = undominated(plans)
    others = [each for each in plans if each not in front]
    series = [_cloud("beaten in both by another", others, BEATEN)] if others else []
    if len(front) > 1:
        x, y = [_good(each) for each in front], [_tpot_s(each) for each in front]
        edge = Series("", x, y, "steps", place=BEST, dashed=True)
        series.insert(0, edge)
    series.append(_cloud("beaten in both by none", front, BEST, _names(front, plans)))
    return Chart(
        series, title, "good requests a second of each device", "time per output token, median", y_unit="s",
        width=WIDTH, height=HEIGHT,
    )  # fmt: skip


def write_load_svg(found: ServingPlans, path: Path) -> None:
    """The picture as a file."""
    title = f"{found.model} on {found.cluster}, under a load"
    path.write_text(chart_svg(load_chart(found, title)) + "\n", encoding="utf-8")


def load_report(found: ServingPlans, rows: Sequence[dict[str, Any]], head: str) -> Report:
    """The page of --report: the best plan's figures, the picture, the table."""
    best = found[0]
    report = best.report
    figures = [
        Figure("good requests", f"{report.goodput_per_s:.2f}/s", f"{best.plan.name}, {best.plan.num_devices} devices"),
        Figure("first token", format_seconds(report.ttft_s["p50"]), f"{format_seconds(report.ttft_s['p99'])} for 99 of 100"),
        Figure("each other token", format_seconds(_tpot_s(best)), "in the median"),
    ]  # fmt: skip
    money = best.usd_per_million_tokens
    if money is not None:
        figures.append(Figure("a million tokens", f"{money:.2f} USD", "of output, all devices paid for"))
    of = "in the load's busiest time" if found.ranked else "under the load"
    note = (
        f"Every plan {of} that is good for at least half as many requests as the best. Further right and lower is "
        "better. Blue plans are beaten by no other in both. Point at a mark to see its plan."
    )
    drawn = chart_svg(load_chart(found), PAGE, standalone=False)
    return Report(
        f"{found.model} on {found.cluster}",
        head,
        figures,
        leading=[Picture("Good requests against time per token", drawn, note), DataTable("Plans", rows)],
        assumptions=found.assumptions,
    )


def undominated(plans: Sequence[ServedPlan]) -> list[ServedPlan]:
    """Those that no other equals or beats in both good requests of a device and time per token, the most requests first."""
    found: list[ServedPlan] = []
    for each in sorted(plans, key=lambda plan: (-_good(plan), _tpot_s(plan))):
        if not found or _tpot_s(each) < _tpot_s(found[-1]):
            found.append(each)
    return found


def _good(each: ServedPlan) -> float:
    return each.report.goodput_per_s / each.plan.num_devices


def _tpot_s(each: ServedPlan) -> float:
    return each.report.tpot_s["p50"]


def _names(plans: Sequence[ServedPlan], drawn: Sequence[ServedPlan]) -> list[str]:
    """Of each its name; those that would stand over each other are one text at the first. `drawn`: all in the picture."""
    if not plans:
        return []
    places = np.array([(_good(each), _tpot_s(each)) for each in plans])
    room = np.maximum(np.ptp([(_good(each), _tpot_s(each)) for each in drawn], axis=0), 1e-9) * CROWDED
    groups: list[list[int]] = []
    for number in range(len(plans)):
        near = [own for own in groups if (np.abs(places[own[0]] - places[number]) < room).all()]
        if near:
            near[0].append(number)
        else:
            groups.append([number])
    texts = [""] * len(plans)
    for own in groups:
        texts[own[0]] = ", ".join(dict.fromkeys(plans[number].plan.name for number in own))
    return texts


def _cloud(name: str, plans: Sequence[ServedPlan], place: int, labels: Sequence[str] = ()) -> Series:
    hints = [
        f"{each.plan.name}, at most {each.plan.max_batch_tokens} tokens and {each.plan.max_sequences} sequences a step: "
        f"{each.report.goodput_per_s:.2f} good requests a second on {counted(each.plan.num_devices, 'device')}, "
        f"{format_seconds(_tpot_s(each))} a token"
        for each in plans
    ]
    return Series(
        name,
        [_good(each) for each in plans],
        [_tpot_s(each) for each in plans],
        "points",
        labels,
        hints,
        place,
    )
