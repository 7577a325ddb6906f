"""Predicted beside measured, or any two traces: the same rows as a terminal table, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshwright.ir.judge import metrics
from meshwright.ir.trace import Trace
from meshwright.reports.chart.quantity import quantity, ratio_text, ratio_verdict

VERDICT_STYLE = {"right": "green", "near": "yellow", "off": "red", "unknown": "dim"}
BAR_RANGE = 0.5  # the bar of a ratio is full at this distance from one
LABELS = ("predicted", "measured")  # what the two columns are of, where nobody says otherwise


@dataclass(frozen=True)
class ComparisonRow:
    """One quantity in SI, predicted and measured; `low` and `high` are the interval of the prediction."""

    name: str
    predicted: float | None
    measured: float | None
    unit: str = "s"
    low: float | None = None
    high: float | None = None
    basis: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted, None where it has no meaning."""
        if self.predicted is None or self.measured is None or self.predicted == 0:
            return None
        return self.measured / self.predicted


Rows = Iterable[ComparisonRow | Mapping[str, Any]]


def comparison_rows(predicted: Trace, measured: Trace) -> list[ComparisonRow]:
    """Step, device time, bubble, peak and the median seconds of every instruction name of two traces."""
    both = (predicted, measured)
    rows = [
        ComparisonRow("step (span)", metrics.span_s(predicted), metrics.span_s(measured)),
        ComparisonRow("device time", metrics.device_time_s(predicted), metrics.device_time_s(measured)),
        ComparisonRow("bubble", metrics.bubble(predicted), metrics.bubble(measured), "share"),
    ]
    if predicted.memory or measured.memory:
        rows.append(ComparisonRow("peak memory", _peak_bytes(predicted), _peak_bytes(measured), "B"))
    seconds = [metrics.seconds_by_name(trace) for trace in both]
    names = sorted(dict.fromkeys([*seconds[0], *seconds[1]]), key=lambda name: _kind_of(name, both))
    return rows + [ComparisonRow(name, seconds[0].get(name), seconds[1].get(name)) for name in names]


def _peak_bytes(trace: Trace) -> float | None:
    return metrics.peak_bytes(trace) if trace.memory else None


def _kind_of(name: str, traces: Iterable[Trace]) -> int:
    """Kind of a name, to list the computes first."""
    effects = (effect for trace in traces for effect in trace.program.tables.effects)
    return min(int(effect.kind) for effect in effects if effect.name == name)


def as_rows(rows: Rows) -> list[ComparisonRow]:
    """Rows from mappings with the keys name, predicted, measured and, optionally, unit, low, high, basis."""
    known = ComparisonRow.__dataclass_fields__
    return [
        row
        if isinstance(row, ComparisonRow)
        else ComparisonRow(**{key: row[key] for key in row if key in known})
        for row in rows
    ]


def comparison_table(rows: Rows, title: str = "", labels: Sequence[str] = LABELS) -> Table:
    """The rows as a rich table, whose columns are called `labels`; the ratio is green within 10 %, yellow within 25 %, red
    beyond."""
    rows = as_rows(rows)
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", style="bold")
    for name in _columns(rows, labels)[1:]:
        table.add_column(name, justify="left" if name == "basis" else "right")
    for row in rows:
        cells: list[Text | str] = list(_cells(row, rows, labels))
        verdict = ratio_verdict(row.ratio)
        cells[_columns(rows, labels).index("ratio")] = Text(
            ratio_text(row.ratio), style=VERDICT_STYLE[verdict]
        )
        table.add_row(*cells)
    return table


def comparison_text(rows: Rows, title: str = "", width: int = 100, labels: Sequence[str] = LABELS) -> str:
    """The rows as plain text."""
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(comparison_table(rows, title, labels))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def comparison_html(rows: Rows, caption: str = "", labels: Sequence[str] = LABELS) -> str:
    """The rows as an HTML table (a fragment), each ratio with a bar from 0.5x to 1.5x."""
    rows = as_rows(rows)
    columns = _columns(rows, labels)
    head = "".join(f'<th scope="col"{_align(name)}>{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{_html_cells(row, rows, labels)}</tr>" for row in rows)
    about = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{about}<thead><tr>{head}<th scope="col"><span class="mono">0.5x to 1.5x</span>'
        f"</th></tr></thead><tbody>{body}</tbody></table></div>"
    )


def _columns(rows: Sequence[ComparisonRow], labels: Sequence[str]) -> list[str]:
    names = ["", labels[0]]
    if any(row.low is not None for row in rows):
        names.append("interval")
    names += [labels[1], "ratio"]
    return [*names, "basis"] if any(row.basis for row in rows) else names


def _cells(row: ComparisonRow, rows: Sequence[ComparisonRow], labels: Sequence[str]) -> list[str]:
    values = {
        "": row.name,
        labels[0]: quantity(row.predicted, row.unit),
        "interval": _interval(row),
        labels[1]: quantity(row.measured, row.unit),
        "ratio": ratio_text(row.ratio),
        "basis": row.basis,
    }
    return [values[name] for name in _columns(rows, labels)]


def _interval(row: ComparisonRow) -> str:
    if row.low is None or row.high is None:
        return ""
    return f"{quantity(row.low, row.unit)} to {quantity(row.high, row.unit)}"


def _align(name: str) -> str:
    return "" if name in ("", "basis") else ' class="number"'


def _html_cells(row: ComparisonRow, rows: Sequence[ComparisonRow], labels: Sequence[str]) -> str:
    parts = []
    verdict = ratio_verdict(row.ratio)
    for name, text in zip(_columns(rows, labels), _cells(row, rows, labels), strict=True):
        if name == "":
            parts.append(f'<th scope="row">{escape(text)}</th>')
        elif name == "ratio":
            parts.append(f'<td class="number {verdict}">{escape(text)}</td>')
        else:
            parts.append(f"<td{_align(name)}>{escape(text)}</td>")
    return "".join(parts) + f"<td>{_bar(row.ratio, verdict)}</td>"


def _bar(ratio: float | None, verdict: str) -> str:
    if ratio is None:
        return ""
    offset = max(-1.0, min(1.0, (ratio - 1) / BAR_RANGE))
    left, wide = (50 + 50 * min(offset, 0), 50 * abs(offset))
    length = f'<i style="left:{left:.1f}%;width:{wide:.1f}%"></i>'
    return f'<span class="bar {verdict}" aria-hidden="true"><b></b>{length}</span>'
