"""A trace as a command gives it back: figures for scripts, a picture for people, files and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from meshwright.api import Subject
from meshwright.cli.frame.output import Result
from meshwright.cli.view.step_view import memory_figures, part_rows, step_figures, step_view
from meshwright.ir.judge import metrics
from meshwright.ir.text import to_text
from meshwright.ir.trace import Trace
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import DataTable, Figure, Report
from meshwright.reports.trace.perfetto import write_perfetto
from meshwright.reports.trace.svg import write_timeline_svg
from meshwright.reports.trace.terminal import timeline_view

TRACE_FORMS = (".npz", ".perfetto.json", ".svg", ".program")  # of -o


def trace_result(trace: Trace, subject: Subject) -> Result:
    """Figures, picture, files and page of a simulated trace."""
    has_bytes = bool(trace.memory) or subject.memory is not None
    peaks = [] if has_bytes else _peak_activations(trace)
    facts = {"peak activations": _activations(peaks)} if peaks else {}
    title = subject.label if subject.counts is None else f"{subject.label}  {_counts_text(subject.counts)}"
    return Result(
        trace_figures(trace, subject),
        (Text(title, style="bold"), timeline_view(trace, facts=facts), *step_view(trace, subject)),
        trace_forms(trace),
        lambda: _trace_page(trace, subject),
        # what stands under a step with its parts is not said twice
        _trace_explanation(trace, replace(subject, assumptions=()) if "parts" in trace.metadata else subject),
    )


def trace_figures(trace: Trace, subject: Subject) -> dict[str, Any]:
    """The figures of a trace under the names that scripts rely on."""
    figures: dict[str, Any] = {
        "span": metrics.span_s(trace),
        "device_time": metrics.device_time_s(trace),
        "bubble": metrics.bubble(trace),
        "peak_activations": _peak_activations(trace),
        "label": subject.label,
        **(subject.counts or {}),
        "idle": metrics.idle_s(trace),
        "period": metrics.period_s(trace),
        "engine": trace.engine,
        "num_instructions": trace.program.num_rows,
        "digest": trace.digest,
        **step_figures(trace),
    }
    if subject.memory is not None:
        figures["memory"] = memory_figures(subject.memory)
        figures["peak_bytes"] = [device.allocated_bytes for device in subject.memory.devices]
        figures["assumptions"] = list(subject.assumptions)
    if trace.memory and subject.plan is not None:
        figures["peak_bytes"] = [metrics.peak_bytes(trace, d) for d in range(trace.program.num_lists)]
    return figures


def trace_forms(trace: Trace) -> dict[str, Any]:
    """The files that a trace can become."""
    return {
        ".npz": trace.save,
        ".perfetto.json": lambda path: write_perfetto(trace, path),
        ".svg": lambda path: write_timeline_svg(trace, path),
        ".program": lambda path: path.write_text(to_text(trace.program), encoding="utf-8"),
    }


def _trace_page(trace: Trace, subject: Subject) -> Any:
    step = trace.metadata.get("step") or {}
    ends = f"{quantity(step.get('low'), 's')} to {quantity(step.get('high'), 's')}, {step.get('basis')}"
    figures = [
        *([Figure("step", quantity(step["value"], "s"), ends)] if step else []),
        Figure("span", quantity(metrics.span_s(trace), "s")),
        Figure("device time", quantity(metrics.device_time_s(trace), "s")),
        Figure("bubble", quantity(metrics.bubble(trace), "share")),
    ]
    facts = {
        key: value for key, value in trace_figures(trace, subject).items() if isinstance(value, str | int)
    }
    parts = trace.metadata.get("parts")
    return Report(
        subject.label, "simulated", figures, plan=[facts], predicted=trace, capacity_bytes=subject.capacity_bytes,
        tables=[DataTable("Where the step goes", part_rows(parts, step["value"]))] if parts else [],
        assumptions=_trace_explanation(trace, subject),
    )  # fmt: skip


def _trace_explanation(trace: Trace, subject: Subject) -> list[str]:
    lines = list(subject.assumptions)
    if subject.plan is None:
        seconds = metrics.seconds_by_name(trace)
        lines += ["seconds by name: " + ", ".join(f"{name} {value:g}" for name, value in seconds.items())]
        lines += [
            "a message between devices takes its latency and occupies nothing; the host issues everything at once"
        ]
    why = {"max-plus": "nothing was over-subscribed, so a worklist sufficed", "event": "links were contended"}
    if subject.memory is not None:
        why["max-plus"] = "what exchanges lose to each other is in their fitted times"
    return [*lines, f"engine {trace.engine}: {why.get(trace.engine, 'as recorded')}"]


def _peak_activations(trace: Trace) -> list[float]:
    return (
        metrics.peak_alive(trace) if any(k.name == "saved" for k in trace.program.tables.value_kinds) else []
    )


def _activations(peaks: Sequence[float]) -> str:
    """Short: the numbers of up to eight devices, otherwise their range."""
    texts = [f"{peak:g}" for peak in peaks]
    return " ".join(texts) if len(texts) <= 8 else f"{min(peaks):g} to {max(peaks):g}"


def _counts_text(counts: Mapping[str, int]) -> str:
    words = {"stages": "devices", "microbatches": "microbatches", "chunks": "chunks a device"}
    return ", ".join(
        f"{count} {words[name]}" for name, count in counts.items() if name != "chunks" or count > 1
    )
