"""A run as one self-contained HTML file: timelines, memory, loss, predicted against measured, where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.reports.chart.chart import Chart, Series, chart_svg
from meshwright.reports.chart.drawing import PAGE
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.comparison import LABELS, as_rows, comparison_html, comparison_rows
from meshwright.reports.page.page_data import is_sampled, page_data
from meshwright.reports.page.report import DataTable, Picture, Report
from meshwright.reports.trace.legend import timeline_key, trace_facts
from meshwright.reports.trace.svg import timeline_svg
from meshwright.reports.trace.timeline import Timeline, read_timeline

SCHEMA = "meshwright-report 1"
MAX_MEMORY_CHARTS = 8
MEMORY_HEADROOM = 1.2  # room above the highest curve for the names of levels
NOSCRIPT_CELLS = 1500  # without scripts, larger timelines are drawn as what runs at each pixel
# Nothing may be fetched: neither by us nor by anything that a title or a table smuggles in.
SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def report_html(report: Report) -> str:
    """The page as text. All text in it is escaped; it loads nothing from anywhere."""
    timelines = {label: read_timeline(trace) for label, trace in report.traces.items()}
    sections = [
        _figures(report),
        *map(_part, report.leading),
        _section("Plan", _pairs(report.plan[0]) if len(report.plan) == 1 else _table(report.plan)),
        _timelines(report, timelines),
        _comparison(report),
        _memory(report, timelines),
        _loss(report),
        *map(_part, report.pictures),
        *map(_part, report.tables),
        _provenance(report),
    ]
    data = json.dumps(page_data(timelines), separators=(",", ":"), allow_nan=False)
    return PAGE_TEMPLATE.format(
        policy=SECURITY_POLICY,
        title=escape(report.title),
        subtitle=f"<p>{escape(report.subtitle)}</p>" if report.subtitle else "",
        style=_asset("page.css"),
        sections="\n".join(section for section in sections if section),
        data=_script_safe(data),
        script=_asset("timeline.js"),
        schema=SCHEMA,
    )


def write_report(report: Report, path: str | Path) -> Path:
    """Write the page to a file and return its path."""
    target = Path(path)
    target.write_text(report_html(report), encoding="utf-8")
    return target


PAGE_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="{schema}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header><h1>{title}</h1>{subtitle}</header>
{sections}
<footer>{schema}. This file is complete in itself and loads nothing.</footer>
</main>
<div id="tip" role="status"></div>
<script type="application/json" id="traces">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files("meshwright.reports").joinpath(name).read_text(encoding="utf-8")


def _script_safe(text: str) -> str:
    """JSON that cannot end its script element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(title: str, content: str, note: str = "") -> str:
    if not content:
        return ""
    about = f"<p>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{about}{content}</section>"


def _part(part: DataTable | Picture) -> str:
    """A table or a picture as a section."""
    if isinstance(part, DataTable):
        return _section(part.title, _table(part.rows), part.note)
    drawn = f'<figure class="wide">{part.svg}</figure>'
    if part.narrow:
        drawn = f'<figure class="wide broad">{part.svg}</figure><figure class="narrow">{part.narrow}</figure>'
    return _section(part.title, drawn, part.note)


def _figures(report: Report) -> str:
    cards = "".join(
        f"<div{' class=warning' if figure.is_warning else ''}><dt>{escape(figure.name)}</dt><dd>{escape(figure.value)}</dd>"
        + (f'<dd class="small">{escape(figure.note)}</dd>' if figure.note else "")
        + "</div>"
        for figure in report.figures
    )
    return f'<dl class="figures">{cards}</dl>' if cards else ""


def _pairs(row: Mapping[str, Any]) -> str:
    pairs = (
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(_cell(value))}</dd></div>" for key, value in row.items()
    )
    return f'<dl class="pairs">{"".join(pairs)}</dl>' if row else ""


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; a column whose values all look like numbers stands to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return ""
    is_number = {name: all(_looks_numeric(row.get(name)) for row in rows) for name in columns}
    align = {name: ' class="number"' if is_number[name] else "" for name in columns}
    head = "".join(f'<th scope="col"{align[name]}>{escape(str(name))}</th>' for name in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td{align[name]}>{escape(_cell(row.get(name)))}</td>" for name in columns)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return quantity(float(value))
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    return str(value)


def _looks_numeric(value: Any) -> bool:
    if value is None or isinstance(value, int | float | np.number):
        return not isinstance(value, bool)
    text = str(value).strip()
    return text in ("", "-") or (text.lstrip("+-")[:1].isdigit() and " x " not in text)


def _timelines(report: Report, timelines: Mapping[str, Timeline]) -> str:
    if not timelines:
        return ""
    keys = "".join(
        f'<li><i style="background:{fill}"></i>{escape(text)}</li>'
        for text, fill in timeline_key(list(timelines.values())).items()
    )
    buttons = (
        '<div class="buttons"><button type="button" data-do="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-do="out" aria-label="Zoom out">&minus;</button>'
        '<button type="button" data-do="all">All</button></div>'
    )
    figures = "".join(
        _figure(place, label, trace_facts(report.traces[label], timeline))
        for place, (label, timeline) in enumerate(timelines.items())
    )
    still = timeline_svg(report.traces, 1080, PAGE, standalone=False, max_cells=NOSCRIPT_CELLS)
    note = "Drag to move, Ctrl and the wheel or double click to zoom, + - 0 and the arrows on the keyboard."
    if any(is_sampled(timeline) for timeline in timelines.values()):
        note += " There are too many instructions to draw each: what runs at evenly spaced moments is drawn."
    return _section(
        "Timeline",
        f'<div class="bench"><div class="tools"><ul class="keys">{keys}</ul>{buttons}</div>{figures}'
        f'<p class="note">{note}</p></div><noscript>{still}</noscript>',
    )


def _figure(place: int, label: str, facts: Mapping[str, str]) -> str:
    words = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in facts.items())
    spoken = escape(
        f"Timeline, {label}: " + ", ".join(f"{name} {value}" for name, value in facts.items()), quote=True
    )
    return (
        f'<figure class="trace"><figcaption><strong>{escape(label.capitalize())}</strong>{words}</figcaption>'
        f'<canvas id="trace{place}" tabindex="0" role="img" aria-label="{spoken}"></canvas></figure>'
    )


def _comparison(report: Report) -> str:
    rows = as_rows(report.comparison)
    if not rows and report.predicted is not None and report.measured is not None:
        rows = comparison_rows(report.predicted, report.measured)
    labels = list(report.traces) if len(report.traces) == len(LABELS) else LABELS
    note = f"Ratio is {labels[1]} over {labels[0]}. Times of instruction names are medians."
    title = f"{labels[0].capitalize()} and {labels[1]}"
    return _section(title, comparison_html(rows, labels=labels), note) if rows else ""


def _memory(report: Report, timelines: Mapping[str, Timeline]) -> str:
    """One small chart a device, those with the highest peaks where there are many."""
    curves = {label: _curves(report.traces[label], timeline) for label, timeline in timelines.items()}
    peaks: dict[int, float] = dict(report.measured_peak_bytes)
    for of_trace in curves.values():
        for device, (_, num_bytes) in of_trace.items():
            peaks[device] = max(peaks.get(device, 0.0), float(num_bytes.max(initial=0.0)))
    if not any(curves.values()):
        return ""
    shown = sorted(sorted(peaks, key=lambda device: -peaks[device])[:MAX_MEMORY_CHARTS])
    horizon_s = max(timeline.extent_s for timeline in timelines.values())
    names = next(iter(timelines.values())).devices
    top = max(peaks[device] for device in shown) * MEMORY_HEADROOM
    columns = 2 if len(shown) in (1, 2, 4) else 3
    charts = "".join(
        f"<figure>{_memory_chart(report, device, names[device], curves, timelines, horizon_s, top, columns)}</figure>"
        for device in shown
    )
    left_out = (
        f" The {len(shown)} of {len(peaks)} devices with the highest peaks."
        if len(shown) < len(peaks)
        else ""
    )
    capacity = f" Capacity {quantity(report.capacity_bytes, 'B')}." if report.capacity_bytes else ""
    return _section(
        "Memory",
        f'<div class="charts" style="--columns:{columns}">{charts}</div>',
        f"Bytes held on each device.{capacity}{left_out}",
    )


def _memory_chart(
    report: Report,
    device: int,
    name: str,
    curves: Mapping[str, Mapping[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]],
    timelines: Mapping[str, Timeline],
    horizon_s: float,
    top: float,
    columns: int,
) -> str:
    series = [
        Series(
            label,
            *of_trace[device],
            form="steps" if report.traces[label].is_measured else "area",
            place=place,
        )
        for place, (label, of_trace) in enumerate(curves.items())
        if device in of_trace
    ]
    levels = (
        [("measured peak", report.measured_peak_bytes[device])]
        if device in report.measured_peak_bytes
        else []
    )
    if report.capacity_bytes and report.capacity_bytes < 1.2 * top:
        levels.append(("capacity", report.capacity_bytes))
        top = max(top, MEMORY_HEADROOM * report.capacity_bytes)
    unit = next(iter(timelines.values())).time_unit
    chart = Chart(
        series, title=name, x_unit=unit, y_unit="B", levels=levels, x_range=(0.0, horizon_s), y_range=(0.0, top),
        width=1090 // columns, height=190,
    )  # fmt: skip
    return chart_svg(chart, PAGE, standalone=False)


def _curves(trace: Trace, timeline: Timeline) -> dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Per device the steps of device memory inside the iteration that is shown, from its start to its end."""
    return {curve.device: _window(curve, timeline) for curve in trace.memory if curve.tier == "device"}


def _window(curve: MemoryCurve, timeline: Timeline) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    times = np.asarray(curve.times_s, dtype=np.float64) - timeline.origin_s
    num_bytes = np.asarray(curve.bytes, dtype=np.float64)
    first, last = np.searchsorted(times, [0.0, timeline.extent_s], side="right")
    before = num_bytes[first - 1] if first else (num_bytes[0] if num_bytes.size else 0.0)
    inside = slice(first, last)
    values = np.concatenate(([before], num_bytes[inside]))
    return np.concatenate(([0.0], times[inside], [timeline.extent_s])), np.concatenate((values, values[-1:]))


def _loss(report: Report) -> str:
    series = [
        Series(name, [x for x, _ in points], [y for _, y in points], place=place)
        for place, (name, points) in enumerate(
            (("training", report.loss), ("held out", report.held_out_loss))
        )
        if points
    ]
    if not series:
        return ""
    chart = Chart(
        series, x_label=report.loss_x_label, y_label="loss", levels=report.loss_levels, width=1080, height=300
    )
    return _section("Loss", f'<figure class="wide">{chart_svg(chart, PAGE, standalone=False)}</figure>')


def _provenance(report: Report) -> str:
    assumed = "".join(f"<li>{escape(line)}</li>" for line in report.assumptions)
    facts = dict(report.provenance)
    for label, trace in report.traces.items():
        facts.setdefault(f"{label} by", f"{trace.engine} engine")
    digests = dict.fromkeys(trace.digest for trace in report.traces.values())
    if digests:
        facts.setdefault("program" if len(digests) == 1 else "programs", " and ".join(digests))
    content = _pairs({"report": SCHEMA, **facts})
    if assumed:
        content += f'<h3>Assumed</h3><ul class="plain">{assumed}</ul>'
    return _section("Provenance", content)
