"""The page of `plan`: the best plan in numbers, the ranked ones, memory by device, step against memory, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.ir.trace import Trace
from meshwright.reports.chart.bars import FILLS, scaled_bars_svg
from meshwright.reports.chart.chart import Chart, Series, chart_svg
from meshwright.reports.chart.drawing import PAGE
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import DataTable, Figure, Picture, Report

WIDTHS, SCATTER_HEIGHT = (1080, 358), 380  # pixels; on a screen, and on a telephone
REST = "smaller ones"  # where there are more parts than colours
NO_FLAG = "-"
NEAR = 1.6  # times the largest peak: a capacity above that would squeeze the picture and is left out
KEY = (
    "tp, cp, ep and dp are the ways of tensor, context, expert and data parallelism, pp the devices of a pipeline, micro "
    "the sequences of a microbatch, x the stages on each device, zero what is sharded, sp sequence parallelism."
)


@dataclass(frozen=True)
class PlanFigures:
    """One plan with what its step is predicted to do: seconds, bytes, shares; `label` is its number or "today".

    ``cells`` are the columns of the table, as texts. ``parts`` are seconds by what the busiest device does, in words;
    they sum to the step. Empty where nobody knows them.
    """

    label: str
    words: str
    step_s: float
    peak_bytes: float
    cells: Mapping[str, Any]
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceHolders:
    """Bytes that one device of the pipeline holds at its peak, by what they are."""

    name: str
    holders: Mapping[str, float]


@dataclass(frozen=True)
class Assumed:
    """What was assumed, in words, and what to type for another; NO_FLAG where there is nothing to type."""

    sentence: str
    flag: str = NO_FLAG


@dataclass(frozen=True)
class PlanPage:
    """What the page shows.

    Attributes:
        title, subtitle: the job, and the best plan in words.
        figures: the headline numbers.
        shown: the plans of the table, the best first.
        simulated: all plans of the picture of step and memory.
        devices: of the best plan's pipeline, the first stage first.
        capacity_bytes: what a device may use.
        trace: one iteration of the best plan.
        reasons: why the first is before the second, and what would help; sentences.
        changes: what the file of today's plan says otherwise for the best one; rows of a table.
        search: how the search went: (what, number, meaning).
        assumed: everything that the numbers rest on.
        provenance: where the page comes from.
    """

    title: str
    subtitle: str
    figures: Sequence[Figure]
    shown: Sequence[PlanFigures]
    simulated: Sequence[PlanFigures] = ()
    devices: Sequence[DeviceHolders] = ()
    capacity_bytes: float | None = None
    trace: Trace | None = None
    reasons: Sequence[str] = ()
    changes: Sequence[Mapping[str, str]] = ()
    search: Sequence[tuple[str, str, str]] = ()
    assumed: Sequence[Assumed] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


def plan_report(page: PlanPage) -> Report:
    """The page's parts in the order in which they are read."""
    leading: list[DataTable | Picture] = [
        DataTable("Ranked plans", [each.cells for each in page.shown], f"{_sentence(page.reasons)} {KEY}"),
        *(
            [DataTable("What changes", page.changes, "From today's file to the best plan.")]
            if page.changes
            else []
        ),
        *_steps(page),
        *_memory(page),
        *_scatter(page),
    ]
    search = [{"": what, "number": number, "meaning": meaning} for what, number, meaning in page.search]
    assumed = [{"assumed": each.sentence, "to change it": each.flag} for each in page.assumed]
    tables = [
        DataTable("How the search went", search),
        DataTable("Assumptions", assumed, "Everything that these numbers rest on and was not said."),
    ]
    return Report(
        page.title,
        page.subtitle,
        figures=page.figures,
        leading=leading,
        predicted=page.trace,
        capacity_bytes=page.capacity_bytes,
        tables=[table for table in tables if table.rows],
        provenance=page.provenance,
    )


def merged(bars: Mapping[str, Mapping[str, float]], most: int = len(FILLS)) -> dict[str, dict[str, float]]:
    """Bars of at most so many different parts, the largest first; all others of a bar are one part, REST."""
    sums: dict[str, float] = {}
    for parts in bars.values():
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value
    order = sorted(sums, key=lambda name: (-sums[name], name))
    kept = order if len(order) <= most else order[: most - 1]
    found = {}
    for label, parts in bars.items():
        own = {name: parts.get(name, 0.0) for name in kept}
        rest = sum(value for name, value in parts.items() if name not in own)
        found[label] = {**own, REST: rest} if len(kept) < len(order) else own
    return found


def undominated(plans: Sequence[PlanFigures]) -> list[PlanFigures]:
    """Those that no other equals or beats in both step and memory, the fastest first."""
    found: list[PlanFigures] = []
    for each in sorted(plans, key=lambda plan: (plan.step_s, plan.peak_bytes)):
        if not found or each.peak_bytes < found[-1].peak_bytes:
            found.append(each)
    return found


def _sentence(lines: Sequence[str]) -> str:
    return " ".join(f"{line[:1].upper()}{line[1:].rstrip('.')}." for line in lines)


def _steps(page: PlanPage) -> list[Picture]:
    """What the step of every shown plan is made of."""
    bars = {each.label: each.parts for each in page.shown if each.parts}
    if not bars:
        return []
    title = "what a step of each plan is made of"
    wide, narrow = (
        scaled_bars_svg(merged(bars), "s", width, PAGE, title, standalone=False) for width in WIDTHS
    )
    note = (
        "Seconds of one step of the busiest device, by what it does; plans by their number in the table. What runs "
        "beside computes does not count, only what computes wait for. Point at a part to see it."
    )
    return [Picture("Where the step goes", wide, note, narrow)]


def _memory(page: PlanPage) -> list[Picture]:
    """What every device of the best plan holds at its peak."""
    if not page.devices:
        return []
    level = ("a device has", page.capacity_bytes) if page.capacity_bytes else None
    wide, narrow = (
        scaled_bars_svg(
            merged({each.name: each.holders for each in page.devices}), "B", width, PAGE,
            "memory of every device of the best plan", standalone=False, level=level,
        )
        for width in WIDTHS
    )  # fmt: skip
    number = len(page.devices)
    of = (
        "a device of the best plan holds at its fullest moment; all devices do as this one"
        if number == 1
        else f"each of the {number} devices of a pipeline holds at its fullest moment; all other devices do as these"
    )
    note = f"Bytes that {of}. What the allocator loses and what the driver takes is not drawn, but kept free."
    return [Picture("Memory of the best plan", wide, note, narrow)]


def _scatter(page: PlanPage) -> list[Picture]:
    """Step against memory of all plans that were simulated, those that no other beats in both marked."""
    plans = page.simulated
    if len(plans) < 2:
        return []
    front = undominated(plans)
    others = [each for each in plans if each not in front]
    steps, peaks = (np.array([getattr(each, name) for each in front]) for name in ("step_s", "peak_bytes"))
    line = [Series("pareto frontier", steps, peaks, "line", place=0, dashed=True)] if len(front) > 1 else []
    beaten = [_cloud("beaten in both by another", others, 5)] if others else []
    chart = Chart(
        [*line, *beaten, _cloud("beaten in both by none", front, 0)],
        x_label="seconds of a step", y_label="peak memory", x_unit="s", y_unit="B",
        levels=_levels(page), width=WIDTHS[0], height=SCATTER_HEIGHT, title="",
    )  # fmt: skip
    note = (
        f"The {len(plans)} plans that were simulated. Blue plans are beaten by no other in both step and memory. "
        "Point at a mark to see its plan."
    )
    wide, narrow = (
        chart_svg(replace(chart, width=width, legend=width == WIDTHS[0]), PAGE, standalone=False)
        for width in WIDTHS
    )  # the note says what the colours are, too
    return [Picture("Step against memory", wide, note, narrow)]


def _levels(page: PlanPage) -> list[tuple[str, float]]:
    """The capacity, where it is near enough to be seen with the plans."""
    top = max(each.peak_bytes for each in page.simulated)
    is_near = page.capacity_bytes is not None and page.capacity_bytes <= NEAR * top
    return [("a device has", page.capacity_bytes or 0.0)] if is_near else []


def _cloud(name: str, plans: Sequence[PlanFigures], place: int) -> Series:
    hints = [
        f"{each.label}: {each.words}; step {quantity(each.step_s, 's')}, memory {quantity(each.peak_bytes, 'B')}"
        for each in plans
    ]
    x, y = [each.step_s for each in plans], [each.peak_bytes for each in plans]
    return Series(name, x, y, "points", hints=hints, place=place)
