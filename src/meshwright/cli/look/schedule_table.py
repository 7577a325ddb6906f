"""The table of `simulate --schedule all`: published, searched and own schedules, and their frontier as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from meshwright.api.subjects.schedule_comparison import ScheduleComparison, ScheduleRow, compare_schedules
from meshwright.cli.frame.output import DONE, REFUSED, Output, Result, table_of
from meshwright.ir.judge import metrics
from meshwright.ir.text import to_torch_csv
from meshwright.ir.trace import Trace
from meshwright.reports.chart.drawing import PAGE
from meshwright.reports.chart.frontier import FrontierPoint, frontier_svg, write_frontier_svg
from meshwright.reports.page.report import DataTable, Figure, Picture, Report

if TYPE_CHECKING:
    Figures = Callable[[Trace, Any], dict[str, Any]]

TABLE_FORMS = (".svg", ".csv")  # of -o
TABLES = ("all", "search")  # words for --schedule that ask for a table
FRONTIER, ABOVE = "frontier", "above the cap"


def is_table(given: Sequence[str], memory_cap: float | None) -> bool:
    """Do these schedules make a table, or is one of them drawn?"""
    return len(given) > 1 or memory_cap is not None or any(name in TABLES for name in given)


def schedule_table(
    out: Output, given: Sequence[str], memory_cap: float | None, figures: Figures, **choices: Any
) -> Result:
    """All of them with the same counts and times; `figures` of a trace and its subject stand in --json.

    Exit 3 where a schedule of the user's own is refused, or nothing keeps within the cap.
    """
    found = compare_schedules(
        given,
        memory_cap=memory_cap,
        seed=out.seed,
        progress=lambda name: out.note(f"searching: {name}") if name.startswith(TABLES[1]) else None,
        **choices,
    )
    points = frontier_points(found)
    explained = _explanation(found, choices.get("stage_times"))
    is_refused = any(row.error is not None and row.origin == "own" for row in found.rows)
    return Result(
        _data(found, figures),
        _view(found),
        _forms(found, points),
        lambda: _page(found, points, [*explained, *_copies(found)]),
        explained,
        REFUSED if is_refused or not found.frontier else DONE,
    )


def frontier_points(found: ScheduleComparison) -> list[FrontierPoint]:
    """What the picture shows of every schedule that was simulated."""
    return [
        FrontierPoint(
            row.name, row.peak, row.span_s, row.origin, row.is_on_frontier,
            f"{row.name}: span {_number(row.span_s)} s, device time {_number(row.device_time_s)} s, peak {row.peak:g}",
        )
        for row in found.simulated
    ]  # fmt: skip


def _data(found: ScheduleComparison, figures: Figures) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for row in found.rows:
        said: dict[str, Any] = {"schedule": row.name, "origin": row.origin}
        if row.error is not None or row.trace is None:
            rows.append({**said, "error": str(row.error)})
            continue
        rows.append(
            {
                **said,
                **figures(row.trace, row.subject),
                "peak": row.peak,
                "num_copies": row.num_copies,
                "generation_s": row.generation_s,
                "fits_cap": row.fits_cap,
                "is_on_frontier": row.is_on_frontier,
            }
        )
    return {
        "schedules": rows,
        "frontier": [row.name for row in found.frontier],
        "memory_cap": found.memory_cap,
        "bounds": {str(num_chunks): bound for num_chunks, bound in found.bound_s.items()},
    }


def _view(found: ScheduleComparison) -> list[Any]:
    lines: list[Any] = [table_of([_cells(row) for row in _ordered(found)])]
    if found.memory_cap is not None and not found.frontier:
        lines.append(Text(f"nothing keeps within the memory cap of {found.memory_cap:g}"))
    lines += [Text(note) for note in _copies(found)]
    lines += [
        Text(f"left out: {row.name}, {row.error}", style="dim" if row.origin == "published" else "bold red")
        for row in found.rows
        if row.error is not None
    ]
    return lines


def _copies(found: ScheduleComparison) -> list[str]:
    """What the peak, which is of activations, does not say of schedules that have a stage on several devices."""
    return [
        f"{row.name} has every stage on {row.num_copies} devices: parameters, gradients and optimizer state as often"
        for row in found.simulated
        if row.num_copies > 1
    ]


def _ordered(found: ScheduleComparison) -> list[ScheduleRow]:
    """By device time, those above the cap behind those within it."""
    return sorted(found.simulated, key=lambda row: row.fits_cap is False)


def _cells(row: ScheduleRow) -> dict[str, Any]:
    assert row.trace is not None, "refused rows stand below the table"
    return {
        "schedule": row.name,
        "chunks": row.num_chunks,
        "span": _number(row.span_s),
        "device time": _number(row.device_time_s),
        "peak": f"{row.peak:g}",
        "bubble": f"{100 * metrics.bubble(row.trace):.1f} %",
        "": ABOVE if row.fits_cap is False else FRONTIER if row.is_on_frontier else "",
    }


def _explanation(found: ScheduleComparison, stage_times: Any) -> list[str]:
    if stage_times is None:
        times = "times are those given, or 1,1,1: B = I + W, R = F, a chunk costs its share of a stage"
    else:
        times = f"times of every stage from {stage_times}: B = I + W, R = F; of a device with v chunks each takes 1/v"
    shapes = {1: "one stage a device", 2: "two in V shape"}
    bounds = [f"{shapes[v]} {_number(bound)} s" for v, bound in found.bound_s.items()]
    return [
        times,
        "peak: the most activations of a device, in full stages, each from the start of its F to the end of its W (or B)",
        f"{FRONTIER}: no other schedule is as good in span and in peak and better in one of them",
        "searched orders keep within their cap, and stand under the smallest that gives them; --seed repeats them",
        f"no order that has each stage once is faster than the largest work of a device and the fill before it: "
        f"{', '.join(bounds)}",
    ]


def _forms(found: ScheduleComparison, points: Sequence[FrontierPoint]) -> dict[str, Any]:
    """The picture, and the fastest order that fits and has each stage once as a schedule of torch's."""
    forms: dict[str, Any] = {".svg": lambda path: write_frontier_svg(points, path, found.memory_cap)}
    # torch has no stage on two ranks
    once = [row for row in found.simulated if row.num_copies == 1 and row.fits_cap is not False]
    fastest = min(once, key=lambda row: (row.span_s, row.peak), default=None)
    if fastest is not None and fastest.subject is not None:
        program = fastest.subject.program
        forms[".csv"] = lambda path: path.write_text(to_torch_csv(program), encoding="utf-8")
    return forms


def _page(found: ScheduleComparison, points: Sequence[FrontierPoint], assumptions: Sequence[str]) -> Report:
    """The frontier, the table, and the timeline of the fastest schedule that fits."""
    front = found.frontier
    figures = []
    if front:
        fast, small = front[-1], front[0]
        figures = [
            Figure("smallest span", f"{_number(fast.span_s)} s", f"{fast.name}, peak {fast.peak:g}"),
            Figure("smallest peak", f"{small.peak:g}", f"{small.name}, span {_number(small.span_s)} s"),
        ]
    drawn = frontier_svg(points, found.memory_cap, PAGE, standalone=False)
    note = "Lower and further left is better. Point at a mark to see its figures."
    return Report(
        "Schedules compared",
        f"{found.num_devices} devices, {found.num_microbatches} microbatches",
        figures,
        leading=[
            Picture("Span against peak", drawn, note),
            DataTable("Schedules", [_cells(row) for row in _ordered(found)]),
        ],
        predicted=front[-1].trace if front else None,
        assumptions=assumptions,
    )


def _number(value: float) -> str:
    return f"{value:.6g}"
