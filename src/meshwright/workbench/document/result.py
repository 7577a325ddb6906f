"""What a command wrote with --json or -o FILE.json, as a document: plans, schedules, a load, a validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import Figure
from meshwright.reports.page.validation import row_table, skipped_table
from meshwright.specs.error import SpecError
from meshwright.workbench.document.column import Column
from meshwright.workbench.document.document import (
    Document,
    DocumentKind,
    FrontierMark,
    FrontierSection,
    Section,
    SeriesLine,
    SeriesSection,
)
from meshwright.workbench.document.table import cell_text, table_of_rows

Data = Mapping[str, Any]
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATENCIES = {"ttft_s": "first token", "tpot_s": "per token", "itl_s": "between tokens", "e2e_s": "whole"}
# What every object of ours has beside its own.
FRAME = ("schema", "meshwright", "wall_s", "explanation", "assumptions")
OF_SEARCHES = ("simulate_s", "num_ranked")  # how layouts were found, and no number of theirs


class ResultKind(NamedTuple):
    """One kind of result: the keys by which it is known, what it is in documents, its sections and headline numbers."""

    keys: frozenset[str]
    kind: DocumentKind
    title: str
    sections: Callable[[Data], Sequence[Section]]
    figures: Callable[[Data], list[Figure]] = lambda data: []  # beside the plain values that it has


def result_document(data: Any, name: str) -> Document:
    """The document of one object. Raises SpecError where no command of ours writes such."""
    if not isinstance(data, Mapping) or "meshwright" not in data:
        raise SpecError(
            f"{name} is JSON that no command of meshwright wrote",
            allowed="what a command writes with --json, metrics of a training, a plan, a program, a trace",
        )
    found = next((each for each in KINDS if each.keys <= set(data)), None)
    kind, title, scores, sections = (
        ("bench", "Result", [], ())
        if found is None
        else (found.kind, found.title, *_built(found, data, name))
    )
    shown = {
        key: value
        for key, value in data.items()
        if key not in (*FRAME, *OF_SEARCHES) and isinstance(value, str | int | float)
    }
    figures = [
        Figure(_words(key), f"{value:,.0f}" if _is_large(key, value) else cell_text(key, value))
        for key, value in shown.items()
    ]
    return Document(
        kind,
        f"{title}: {name}",
        f"meshwright {data['meshwright']}",
        [*scores, *figures],
        _lines(data),
        sections,
    )


def _words(key: str) -> str:
    """The name of a value: `output_tokens_per_s` as output tokens a second."""
    return key.removeprefix("num_").replace("_per_s", " a second").removesuffix("_s").replace("_", " ")


def _is_large(key: str, value: str | float) -> bool:
    return key.endswith("_per_s") and isinstance(value, int | float) and 1000 <= value < math.inf


def _built(found: ResultKind, data: Data, name: str) -> tuple[list[Figure], Sequence[Section]]:
    """Its headline numbers and sections; what was changed by hand so that parts are missing is the user's to read."""
    try:
        return found.figures(data), found.sections(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise SpecError(
            f"{name} lacks what its kind has ({type(error).__name__}: {error})", next="write it again"
        ) from None


def _lines(data: Data) -> list[str]:
    said = [data.get(key) for key in ("explanation", "assumptions")]
    return [str(line) for lines in said if isinstance(lines, list) for line in lines]


def _plans(data: Data) -> list[Section]:
    plans = data["plans"]
    steps = [float(each["step_time_s"]) for each in plans]
    peaks = [float(each["peak_memory_bytes"]) for each in plans]
    best = undominated(list(zip(steps, peaks, strict=True)))
    marks = [
        FrontierMark(step, peak, str(each["description"]), str(each["place"]), place in best)
        for place, (each, step, peak) in enumerate(zip(plans, steps, peaks, strict=True))
    ]
    rows = [
        {"": str(each["place"]), "plan": each["description"], "step": quantity(each["step_time_s"], "s"),
         "MFU": quantity(each.get("mfu"), "share"), "bubble": quantity(each["bubble"], "share"),
         "memory": quantity(each["peak_memory_bytes"], "B")}
        for each in plans
    ]  # fmt: skip
    picture = FrontierSection("frontier", "Step against memory", marks, "step", "peak memory", "s", "B")
    return [table_of_rows("plans", "Ranked plans", rows), picture]


def _schedules(data: Data) -> list[Section]:
    rows = [each for each in data["schedules"] if "error" not in each]
    marks = [
        FrontierMark(
            float(each["peak"]),
            float(each["span"]),
            each["schedule"],
            each["schedule"],
            bool(each["is_on_frontier"]),
        )
        for each in rows
    ]
    shown = [
        {key: each.get(key) for key in ("schedule", "origin", "span", "device_time", "bubble", "peak")}
        for each in rows
    ]
    left_out = [
        {"schedule": each["schedule"], "why": each["error"]} for each in data["schedules"] if "error" in each
    ]
    picture = FrontierSection("frontier", "Span against peak", marks, "peak activations", "span", "", "s")
    more = [table_of_rows("left_out", "Left out", left_out)] if left_out else []
    return [picture, table_of_rows("schedules", "Schedules", shown), *more]


def _layouts(data: Data) -> list[Section]:
    """The table that the command prints, and all of it as points: more good requests and less time are better."""
    layouts = data["layouts"]
    points = [
        (each["goodput_per_s"] / each["plan"]["num_devices"], float(each["tpot_s"]["p50"]))
        for each in layouts
    ]
    best = undominated([(-good, tpot_s) for good, tpot_s in points])
    marks = [
        FrontierMark(good, tpot_s, each["plan"]["name"], str(place), place in best)
        for place, (each, (good, tpot_s)) in enumerate(zip(layouts, points, strict=True))
    ]
    picture = FrontierSection(
        "frontier", "Good requests against time per token", marks, "good requests a second of each device",
        "time per output token, median", "", "s",
    )  # fmt: skip
    return [
        table_of_rows("layouts", "Layouts that serve the load", [_layout(each) for each in layouts]),
        picture,
    ]


def _layout(each: Data) -> dict[str, Any]:
    """One layout: the decision, how much of the load was good, latencies, and what it costs where that is known."""
    plan = each["plan"]
    found = {"plan": plan["name"], "devices": plan["num_devices"], "batch": plan["max_batch_tokens"],
             "sequences": plan["max_sequences"], "good": quantity(each["good_share"], "share"),
             "good/s": f"{each['goodput_per_s']:.2f}", "tokens/s": f"{each['output_tokens_per_s']:,.0f}"}  # fmt: skip
    for key, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
        found |= {f"{name} {share}": quantity(_finite(each[key].get(share)), "s") for share in ("p50", "p99")}
    costs = {
        "USD/M tokens": each.get("usd_per_million_tokens"),
        "kWh/M tokens": each.get("kwh_per_million_tokens"),
    }
    return found | {name: f"{value:.3g}" for name, value in costs.items() if value is not None}


def _best_layout(data: Data) -> list[Figure]:
    """Of the first layout, which is the best."""
    best = data["layouts"][0]
    first, each = (quantity(_finite(best[key].get("p50")), "s") for key in ("ttft_s", "tpot_s"))
    return [
        Figure(
            "best layout",
            str(best["plan"]["name"]),
            f"of {data.get('num_ranked', len(data['layouts']))} ranked",
        ),
        Figure(
            "good requests", quantity(best["good_share"], "share"), f"{best['goodput_per_s']:.2f} a second"
        ),
        Figure("time to first token", first, "median"),
        Figure("time per output token", each, "median"),
    ]


def _load(data: Data) -> list[Section]:
    """Latencies by percentile, and their table."""
    lines, rows = [], []
    known = [each for each in PERCENTILES if any(each in data[key] for key in LATENCIES)]
    for key, name in LATENCIES.items():
        told = {each: _finite(data[key].get(each)) for each in known}
        points = [(PERCENTILES[each], value) for each, value in told.items() if value is not None]
        rows.append({"time": name, **{each: quantity(value, "s") for each, value in told.items()}})
        if points:
            x, y = zip(*points, strict=True)
            lines.append(SeriesLine(name, Column.exact(x), Column.exact(y)))
    chart = SeriesSection("latency", "Latency by percentile", lines, "share of requests", "", "share", "s")
    return [*([chart] if lines else []), table_of_rows("latencies", "Latencies", rows)]


def _validation(data: Data) -> list[Section]:
    rows = data["rows"]
    predicted = [row for row in rows if row["predicted_s"] and row["measured_s"]]
    marks = [
        FrontierMark(
            float(row["measured_s"]),
            float(row["predicted_s"]),
            f"{row['row_id']} ({row['source']})",
            str(row["row_id"]),
        )
        for row in predicted
    ]
    picture = FrontierSection(
        "scatter", "Predicted against measured", marks, "measured", "predicted", "s", "s", has_diagonal=True
    )
    skipped = skipped_table(rows)
    more = [table_of_rows("skipped", "Skipped rows", skipped)] if skipped else []
    return [picture, table_of_rows("rows", "Rows, worst first", row_table(rows)), *more]


def _scores(data: Data) -> list[Figure]:
    """How far the core rows are off, as `validate` tells it."""
    core = data["summary"]["lines"]["core"]
    share = {
        key: quantity(core[key], "share") for key in ("median_error", "coverage", "within_10", "half_width")
    }
    found = [
        Figure(
            "median error, average over sources",
            quantity(core["average_median_error"], "share"),
            f"pooled {share['median_error']}; within 10 %: {share['within_10']} of rows",
        ),
        Figure(
            "measured inside the interval",
            share["coverage"],
            f"median half width {share['half_width']} of the prediction",
        ),
        Figure("core rows", f"{core['num_rows']:,}", f"{core['num_skipped']:,} of them skipped"),
    ]
    if core["memory_error"] is not None:
        rows = f"{core['num_memory_rows']:,} rows"
        found.append(Figure("peak memory, median error", quantity(core["memory_error"], "share"), rows))
    return found


def undominated(points: Sequence[tuple[float, float]]) -> set[int]:
    """Places of those that no other equals or beats in both numbers; less is better."""
    found, least = set(), math.inf
    for place in sorted(range(len(points)), key=lambda each: points[each]):
        if points[place][1] < least:
            least = points[place][1]
            found.add(place)
    return found


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


KINDS = (
    ResultKind(frozenset({"plans", "num_candidates"}), "plan", "Plans", _plans),
    ResultKind(frozenset({"schedules", "frontier"}), "sweep", "Schedules", _schedules),
    ResultKind(frozenset({"layouts"}), "load", "Layouts for a load", _layouts, _best_layout),
    ResultKind(frozenset({"ttft_s", "num_requests", "e2e_s"}), "load", "A server under load", _load),
    ResultKind(
        frozenset({"rows", "summary"}), "validation", "Predicted against measured", _validation, _scores
    ),
)
