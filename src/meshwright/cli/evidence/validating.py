"""`meshwright validate`: predictions beside tables of published measurements, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from meshwright import api
from meshwright.cli.evidence.unseen_view import validated_unseen
from meshwright.cli.frame.output import Output, Result, percent, table_of
from meshwright.cli.frame.progress import live_line
from meshwright.evidence.tables.score import Line, Score, Summary
from meshwright.evidence.tables.table import UnreadRow
from meshwright.evidence.tables.validate_training import Predictor, Validation
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import DataTable, Figure, Report
from meshwright.reports.page.validation import skipped_table, validation_report
from meshwright.specs.error import UnknownNameError

KINDS = ("training", "unseen")
UNREAD = "Rows that cannot be read: not predicted, and in no average"
MOST_UNREAD = 10  # of them shown in a terminal and on a page
NUM_WORST = 10  # rows shown in a terminal
COLUMNS = "Errors in per cent; covered: measured inside the 80 % interval; +-: its median half width."
WORST = "Worst: the source of five rows or more with the largest median error"
LINE_NAMES = {
    "core": "core",
    "dense": "dense",
    "moe": "MoE",
    "moe_newest_release": "MoE, newest",
    "float8": "FP8",
    "long_sequences": "seq > 8,192",
    "not_core": "not core",
}


def validate(
    out: Output,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="training: by the packaged constants; unseen: each source by those without it.",
        ),
    ],
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="TABLE...", help="CSV files of the calibration schema, or of unseen folders."),
    ],
) -> Result:
    """Predict every row of tables of measured runs and say how far off the predictions are."""
    if kind not in KINDS:
        raise UnknownNameError("kind of validation", kind, KINDS)
    return validated_unseen(out, tables) if kind == "unseen" else validated_training(out, tables)


def validated_training(out: Output, tables: Sequence[Path], predictor: Predictor | None = None) -> Result:
    """The result of `validate training`; `predictor` stands in for the simulator."""
    with live_line(out) as line:
        found = api.validate_training(*tables, progress=line.share, predictor=predictor)
    tables_read = found.tables
    for path in tables_read.left_out:
        out.note(f"{path} is left out: it has no row_id, so it is no table of measured runs")
    rows = found.to_rows()
    data = {
        "rows": rows,
        "summary": found.summary.to_dict(),
        "unread": [asdict(row) for row in tables_read.unread],
        "left_out": list(tables_read.left_out),
    }
    view = _view(found.summary, rows)
    if tables_read.unread:
        view.append(table_of(_unmarked(unread_table(tables_read.unread)), UNREAD))
    return Result(data, view, report=lambda: _page(found, rows), explanation=_explained(found))


def _view(summary: Summary, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Tables and lines for a terminal."""
    worst = [
        row for row in sorted(rows, key=lambda row: -abs(row["error"])) if row["predicted_s"] is not None
    ]
    skipped = skipped_table(rows)
    shown: list[Any] = [
        table_of(
            _unmarked(source_table(summary)), "By source: core rows, one per configuration; errors in %"
        ),
        table_of(
            _unmarked(line_table(summary)), "Selections: averages over sources, then pooled; errors in %"
        ),
        Text("\n".join(f"{name}: {text} ({note})" for name, text, note in headlines(summary))),
        Text(""),
        table_of(_unmarked([_worst_row(row) for row in worst[:NUM_WORST]]), "Worst rows, core or not"),
    ]
    return [*shown, table_of(_unmarked(skipped), "Skipped rows, by reason")] if skipped else shown


def _unmarked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with brackets as they stand in the tables: ids and reasons are text, not markup."""
    return [
        {key: escape(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    ]


def unread_table(rows: Sequence[UnreadRow]) -> list[dict[str, Any]]:
    """One row each, the first ones; the last line counts the others."""
    shown = [{"row": row.row_id or "-", "why": row.why} for row in rows[:MOST_UNREAD]]
    rest = len(rows) - len(shown)
    return [*shown, {"row": "-", "why": f"{rest} more; --json has each"}] if rest else shown


def source_table(summary: Summary) -> list[dict[str, Any]]:
    """One row a source, numbers in per cent."""
    return [{"source": name, **_columns(score)} for name, score in summary.sources.items()]


def line_table(summary: Summary) -> list[dict[str, Any]]:
    """One row a selection, numbers in per cent; selections without rows are left out."""
    lines = {name: summary.lines[key] for key, name in LINE_NAMES.items()}
    return [_line_row(name, line) for name, line in lines.items() if line.pooled.num_rows]


def _line_row(name: str, line: Line) -> dict[str, Any]:
    worst = line.worst_source
    return {
        "selection": name,
        "rows": line.pooled.num_rows,
        "sources": len(line.by_source),
        "average": percent(line.average_median_error),
        "|bias|": percent(line.average_bias),
        "median": percent(line.pooled.median_error),
        "<= 10": percent(line.pooled.within_10),
        "<= 20": percent(line.pooled.within_20),
        "worst": "-" if worst is None else percent(line.by_source[worst].median_error),
        "source": worst or "-",
    }


def _columns(score: Score) -> dict[str, Any]:
    return {
        "rows": score.num_rows,
        "skip": score.num_skipped,
        "median": percent(score.median_error),
        "mean": percent(score.mean_error),
        "<= 10": percent(score.within_10),
        "<= 20": percent(score.within_20),
        "bias": percent(score.bias),
        "covered": percent(score.coverage),
        "+-": percent(score.half_width),
        "memory": percent(score.memory_error),
    }


def headlines(summary: Summary) -> list[tuple[str, str, str]]:
    """Name, number and small print of what is not in the tables."""
    core = summary.lines["core"]
    pooled = core.pooled
    found = [
        (
            "median error, average over sources",
            _share(core.average_median_error),
            f"pooled {_share(pooled.median_error)}",
        ),
        (
            "skipped",
            _share(summary.skipped_share),
            f"{summary.num_core_skipped} of {summary.num_core_rows} core rows; each counts as 100 %",
        ),
        (
            "measured inside the interval",
            _share(pooled.coverage),
            f"median half width {_share(pooled.half_width)} of the prediction",
        ),
        (
            "layouts in the right order",
            _share(summary.pairs_ordered),
            f"{summary.num_pairs} pairs of one job that differ by more than 6 %",
        ),
    ]
    if pooled.memory_error is not None:
        note = f"{pooled.num_memory_rows} rows; {_share(pooled.above_upper)} measured above the upper bound"
        found.append(("peak memory, average over sources", _share(core.average_memory_error), note))
    return found


def _worst_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "row": row["row_id"],
        "predicted": quantity(row["predicted_s"], "s"),
        "measured": quantity(row["measured_s"], "s"),
        "error": percent(row["error"]),
        "basis": row["basis"],
        "core": "yes" if row["is_core"] else "no",
    }


def _page(found: Validation, rows: Sequence[Mapping[str, Any]]) -> Report:
    summary = found.summary
    tables = [
        DataTable(
            "By source", _digits(source_table(summary)), f"Core rows, one per configuration. {COLUMNS}"
        ),
        DataTable(
            "Selections",
            _digits(line_table(summary)),
            f"Average: mean over sources of their medians. {WORST}. Errors in per cent.",
        ),
    ]
    if found.tables.unread:
        tables.append(DataTable("Rows not read", unread_table(found.tables.unread), f"{UNREAD}."))
    return validation_report(
        rows,
        [Figure(*one) for one in headlines(summary)],
        tables,
        title="Training steps: predicted and measured",
        subtitle=f"{summary.num_rows} rows, {summary.num_core_rows} of them core",
        assumptions=found.assumptions(),
    )


def _digits(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per cents with one digit each, also 4.0, so that a column of a page reads as in a terminal."""
    return [
        {key: f"{value:.1f}" if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    ]


def _explained(found: Validation) -> list[str]:
    rules = [
        "error is predicted / measured - 1; a skipped row counts as 100 %",
        "scored are core rows, one per configuration: that of the newest release",
        "memory is compared as reserved where the source reports reserved, else as allocated",
        "the columns covered and +- are of the 80 % interval: how often it held, and its half width",
        WORST[0].lower() + WORST[1:],
    ]
    return [*rules, *found.assumptions()]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{percent(share)} %"
