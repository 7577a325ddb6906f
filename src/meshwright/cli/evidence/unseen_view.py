"""`validate unseen` in a terminal: scores by source and kind, few rows of one's own, order, what should hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.cli.frame.output import PERCENT, Output, Result, percent, table_of
from meshwright.cli.frame.progress import live_line
from meshwright.evidence.tables.score import Score
from meshwright.evidence.unseen.ordering import JobOrder
from meshwright.evidence.unseen.reliability import Reliability
from meshwright.evidence.unseen.validate_unseen import Limit, Unseen
from meshwright.reports.page.report import DataTable
from meshwright.reports.page.validation import validation_report

SOURCES = (
    "By source, each by constants that were fitted without it; core rows, one per configuration; errors in %"
)
KINDS = (
    "By kind: all rows of a kind together; covered: share inside the 80 % interval, +-: its median half width"
)
FEW = "Rows of one's own: median error of the others in %, median of 50 draws"
ORDER = "Order of layouts of one job, jobs of ten layouts or more: regret of the first choice in %, rank correlation"
CHANCES = "Chance that memory is enough, and the share of measured peaks for which it was; sources weigh alike; in %"
LIMITS = "What should hold (shares in %)"


def validated_unseen(out: Output, paths: Sequence[Path]) -> Result:
    """The result of `validate unseen`."""
    with live_line(out) as line:
        found = api.validate_unseen(*paths, progress=line.share)
    for path in found.tables.left_out:
        out.note(f"{path} is left out: it has no row_id, so it is no table of measured runs")
    tables = {
        SOURCES: _scores(found.sources, "source"),
        KINDS: _scores(found.kinds, "kind"),
        FEW: few_table(found),
        ORDER: [_order_row(name, jobs) for name, jobs in found.jobs.items() if jobs],
        CHANCES: _chance_rows(found.chances),
        LIMITS: [_limit_row(limit) for limit in found.limits],
    }
    shown = {title: rows for title, rows in tables.items() if rows}
    return Result(
        found.to_dict(),
        [table_of(rows, title) for title, rows in shown.items()],
        report=lambda: validation_report(
            [
                {
                    **one.to_dict(),
                    "source": row.source,
                    "is_core": True,
                    "measured_peak_bytes": row.peak_bytes,
                }
                for row, one in found.scored
            ],
            [],
            [DataTable(title, rows) for title, rows in shown.items()],
            title="Training steps of sources that were left out",
            subtitle=f"{len(found.scored)} rows of {len(found.sources)} sources",
        ),
        explanation=(
            "a source that the packaged constants were fitted on is predicted by a fit without it, another by all",
            "error is predicted / measured - 1; a skipped row counts as 100 %",
            "by Bayes' rule: what these rows say of level, kinds of work, host and layout, with a prior of other sources",
            "median ratio: every prediction times the median of measured over predicted of these rows",
            "bound +: how far memory's bound is above what is expected, median; ran at: mean chance that what ran would fit",
            "above 64 devices: by constants fitted without such rows, corrected by the source's own rows of fewer",
        ),
    )


def _scores(scores: Mapping[str, Score], label: str) -> list[dict[str, Any]]:
    return [
        {
            label: name,
            "rows": each.num_rows,
            "skip": each.num_skipped,
            "median": percent(each.median_error),
            "bias": percent(each.bias),
            "<= 10": percent(each.within_10),
            "covered": percent(each.coverage),
            "+-": percent(each.half_width),
            "memory": percent(each.memory_error),
            "in bound": percent(None if each.above_upper is None else 1.0 - each.above_upper),
        }
        for name, each in scores.items()
        if each.num_rows
    ]


def few_table(found: Unseen) -> list[dict[str, Any]]:
    """One row a source that has rows enough: without any of its own, then with so many, each way to learn from them; last
    what rows of up to 64 devices say of those above."""
    rows = []
    for source, own in found.sources.items():
        row: dict[str, Any] = {"source": source, "none": percent(own.median_error)}
        for number, ways in found.few.items():
            row |= {f"{number}, {name}": percent(errors.get(source)) for name, errors in ways.items()}
        rows.append({**row, "above 64 devices": percent(found.beyond.get(source))})
    return rows


def _chance_rows(chances: Reliability) -> list[dict[str, Any]]:
    """One row: a column a level."""
    if not chances.levels:
        return []
    shares = zip(chances.levels, chances.observed, strict=True)
    return [
        {
            "rows": chances.num_rows,
            "sources": chances.num_sources,
            "bound +": percent(chances.bound_above),
            "ran at": percent(chances.fit_chance),
        }
        | {f"{level:.0%}": percent(share) for level, share in shares}
    ]


def _order_row(name: str, jobs: Sequence[JobOrder]) -> dict[str, Any]:
    return {
        "order": name,
        "jobs": len(jobs),
        "layouts": sum(job.num_layouts for job in jobs),
        "regret, median": percent(statistics.median(job.regret for job in jobs)),
        "regret, worst": percent(max(job.regret for job in jobs)),
        "correlation, median": round(statistics.median(job.correlation for job in jobs), 3),
        "worst job": max(jobs, key=lambda job: job.regret).job,
    }


def _limit_row(limit: Limit) -> dict[str, Any]:
    scale = PERCENT if limit.is_share else 1.0
    ends = {"at least": limit.least, "at most": limit.most}
    told = " and ".join(f"{word} {scale * end:g}" for word, end in ends.items() if abs(end) != float("inf"))
    value = "-" if limit.value is None else round(scale * limit.value, 1 if limit.is_share else 3)
    return {"what": limit.name, "value": value, "should be": told, "holds": "yes" if limit.holds else "no"}
