"""A trace as a document, and two traces beside each other: what was predicted, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.api import Subject, simulate
from meshwright.ir.judge import metrics
from meshwright.ir.timing.wiring import Wiring, wire
from meshwright.ir.trace import Trace, labels_of
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.comparison import ComparisonRow, comparison_rows
from meshwright.reports.page.report import Figure
from meshwright.reports.trace.timeline import device_labels
from meshwright.specs.units import counted
from meshwright.workbench.document.document import (
    Document,
    DocumentKind,
    Section,
    TimelineSection,
)
from meshwright.workbench.document.drawn.drawing import MOST_ROWS, drawn_trace
from meshwright.workbench.document.plan import composition_of
from meshwright.workbench.document.table import table_of_rows

MOST_WIRED_ROWS = 200_000  # above it a critical path would be found for longer than anybody waits


def subject_document(
    made: Subject, title: str = "", kind: DocumentKind = "program", *, most_rows: int = MOST_ROWS
) -> Document:
    """The document of a program or a schedule, on virtual time. Raises as `simulate`."""
    return trace_document(simulate(made), title or made.label, kind, most_rows=most_rows)


def trace_document(
    trace: Trace, title: str, kind: DocumentKind = "trace", *, most_rows: int = MOST_ROWS
) -> Document:
    """The document of one trace, whose metadata say what its step is made of."""
    drawn = drawn_trace(trace, labels_of(trace)[0], wiring=_wiring(trace), most_rows=most_rows)
    parts = trace.metadata.get("parts")
    sections: list[Section] = [TimelineSection("timeline", "Timeline", [drawn])]
    if isinstance(parts, Mapping):
        sections += composition_of({str(name): float(value) for name, value in parts.items()})
    sections += _seconds_by_name(trace)
    return Document(
        kind, title, _subtitle(trace), trace_figures(trace), _assumptions(trace), sections
    )  # fmt: skip


def comparison_document(
    predicted: Trace, measured: Trace, title: str, *, most_rows: int = MOST_ROWS
) -> Document:
    """Two traces on one time axis, and what differs. Of one program rows of the same lane stand for the same instructions."""
    both = (predicted, measured)
    labels = labels_of(*both)
    drawn = [
        drawn_trace(each, label, wiring=_wiring(each), most_rows=most_rows // 2)
        for label, each in zip(labels, both, strict=True)
    ]
    rows = comparison_rows(predicted, measured)
    is_same = predicted.digest == measured.digest
    note = "" if is_same else "The traces are of different programs: their instructions are not the same."
    table = table_of_rows(
        "comparison", f"{labels[0].capitalize()} and {labels[1]}", [_cells(row, labels) for row in rows],
        "Ratio is the second over the first. Times of instruction names are medians.",
    )  # fmt: skip
    return Document(
        "comparison", title, " beside ".join(map(_called, labels, both)), _compared(rows, labels), [],
        [TimelineSection("timeline", "Timelines", drawn, note), table],
    )  # fmt: skip


def _called(label: str, trace: Trace) -> str:
    """What a trace is called here, and by itself."""
    own = trace.metadata.get("label") or trace.metadata.get("plan")
    return f"{label} ({own})" if own else label


def trace_figures(trace: Trace) -> list[Figure]:
    """Its headline numbers."""
    unit = str(trace.metadata.get("time_unit", "s"))
    found = [Figure("bubble", quantity(metrics.bubble(trace), "share"), "of the time of all compute streams")]
    step = trace.metadata.get("step")
    if isinstance(step, Mapping):
        ends = f"{quantity(step.get('low'), 's')} to {quantity(step.get('high'), 's')}, {step.get('basis')}"
        found.insert(0, Figure("step", quantity(step.get("value"), "s"), ends))
    found.insert(
        0, Figure("span", quantity(metrics.span_s(trace), unit), "from the first start to the last end")
    )
    if trace.memory:
        found.append(Figure("peak memory", quantity(metrics.peak_bytes(trace), "B"), "of the fullest device"))
    return found


def _subtitle(trace: Trace) -> str:
    program = trace.program
    lists = len(device_labels(program))
    devices = f"{program.num_devices:,} devices" + (
        f", {lists:,} of them different" if lists < program.num_devices else ""
    )
    length = counted(trace.num_iterations, "iteration")
    return f"{program.num_rows:,} instructions on {devices}; {labels_of(trace)[0]}, {length}"


def _wiring(trace: Trace) -> Wiring | None:
    """Who waits for whom, where the program says it and is small enough."""
    is_known = not trace.is_profile and trace.program.num_rows <= MOST_WIRED_ROWS
    return wire(trace.program) if is_known else None


def _assumptions(trace: Trace) -> list[str]:
    said: Any = trace.metadata.get("assumptions", ())
    return [str(line) for line in said] if isinstance(said, list | tuple) else []


def _seconds_by_name(trace: Trace) -> list[Section]:
    """What one instruction of each name takes."""
    unit = str(trace.metadata.get("time_unit", "s"))
    rows = [
        {"instruction": name, "median": quantity(value, unit)}
        for name, value in metrics.seconds_by_name(trace).items()
    ]
    return [table_of_rows("names", "What instructions take", rows)] if rows else []


def _cells(row: ComparisonRow, labels: Sequence[str]) -> dict[str, str]:
    ratio = row.ratio
    return {
        "": row.name,
        labels[0]: quantity(row.predicted, row.unit),
        labels[1]: quantity(row.measured, row.unit),
        "ratio": "-" if ratio is None else f"{ratio:.2f}x",
    }


def _compared(rows: list[ComparisonRow], labels: Sequence[str]) -> list[Figure]:
    """Step and bubble of the second, with those of the first."""
    return [
        Figure(row.name, quantity(row.measured, row.unit), f"{labels[0]} {quantity(row.predicted, row.unit)}")
        for row in rows[:3]
    ]
