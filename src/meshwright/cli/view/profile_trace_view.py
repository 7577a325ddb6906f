"""Traces of torch.profiler for people: what a job did rank by rank, and a prediction beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from meshwright.cli.frame.output import Result, table_of
from meshwright.evidence.profile_comparison import ProfileComparison
from meshwright.interop.profiler.profiled_trace import trace_of
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import Report
from meshwright.reports.trace.perfetto import write_perfetto
from meshwright.reports.trace.svg import write_timeline_svg
from meshwright.reports.trace.terminal import timeline_view
from meshwright.specs.units import format_seconds, interval_text

NUM_RANKS_SHOWN = 16
NUM_NAMES_SHOWN = 5


def profile_view(profile: Mapping[str, Any]) -> list[Any]:
    """Ranks as a table, and how much of the time has a name."""
    rows = [
        {
            "rank": each["rank"],
            "computing": format_seconds(each["compute_s"]),
            "exchanging": format_seconds(each["exchange_s"]),
            "exposed": format_seconds(each["exposed_s"]),
            "bubble": f"{each['bubble']:.1%}",
            "most of it": ", ".join(
                f"{name} {format_seconds(seconds)}"
                for name, seconds in list(each["names"].items())[:NUM_NAMES_SHOWN]
            ),
        }
        for each in profile["ranks"]
    ]
    said = f"step {format_seconds(profile['step_s'])}, the median of {profile['num_steps']}; {_named(profile['named_share'])}"
    return [Text(said), table_of(rows[:NUM_RANKS_SHOWN]), *_more(len(rows))]


def profile_comparison_result(found: ProfileComparison) -> Result:
    """The result of `compare PLAN` with traces of torch.profiler."""
    measured = trace_of(found.job)
    traces = {"predicted": found.predicted, "measured": measured}
    ratio = (found.step.measured or 0.0) / (found.step.predicted or 1.0)
    lines = [
        f"step: measured / predicted = {ratio:.3f}",
        _named(found.job.named_share),
        *(f"CAUTION: {doubt}" for doubt in found.doubts),
    ]
    view: list[Any] = [
        table_of([_row(each.row()) for each in found.quantities()]),
        *(Text(line, overflow="fold") for line in lines),
        Text("rank by rank, predicted / measured", style="bold"),
        table_of([_rank_row(each) for each in found.ranks[:NUM_RANKS_SHOWN]]),
        *_more(len(found.ranks)),
        Text("measured", style="bold"),
        timeline_view(measured),
    ]
    return Result(
        found.to_dict(), view,
        {
            ".perfetto.json": lambda path: write_perfetto(traces, path),
            ".svg": lambda path: write_timeline_svg(traces, path),
            ".npz": measured.save,
        },
        lambda: Report(
            "A prediction beside a profile", predicted=found.predicted, measured=measured,
            comparison=[each.row() for each in found.quantities()], assumptions=found.notes,
        ),
        found.notes,
    )  # fmt: skip


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    ours, theirs, unit = row["predicted"], row["measured"], row["unit"]
    ends = (
        "" if row.get("low") is None else interval_text(quantity(row["low"], "s"), quantity(row["high"], "s"))
    )
    return {
        "": row["name"],
        "predicted": "-" if ours is None else quantity(ours, unit),
        "interval": ends,
        "measured": "-" if theirs is None else quantity(theirs, unit),
        "ratio": f"{theirs / ours:.2f}x" if ours and theirs is not None else "-",
    }


def _rank_row(each: Any) -> dict[str, Any]:
    ours, theirs = each.predicted, each.measured
    return {
        "rank": each.rank,
        **{
            words: f"{'-' if ours is None else format_seconds(getattr(ours, field))} / "
            f"{format_seconds(getattr(theirs, field))}"
            for words, field in (
                ("computing", "compute_s"),
                ("exchanging", "exchange_s"),
                ("exposed", "exposed_s"),
            )
        },
        "bubble": f"{'-' if ours is None else f'{ours.bubble:.1%}'} / {theirs.bubble:.1%}",
    }


def _more(number: int) -> Sequence[Text]:
    return [Text(f"and {number - NUM_RANKS_SHOWN} more ranks (--json)")] if number > NUM_RANKS_SHOWN else []


def _named(share: float) -> str:
    return f"{share:.1%} of the time has a name (annotations, autograd, libraries of collectives); the rest is OTHER"
