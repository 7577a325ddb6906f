"""Picture of a few rows of one's own: the error of a source's other rows over how many of its rows are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from meshwright.evidence.tables.score import Scored
from meshwright.evidence.unseen import few_rows
from meshwright.evidence.unseen.validate_unseen import LEARNERS
from meshwright.reports import Chart, Series, chart_svg

from .term import THEME, WIDE, Term

NUMBERS = (1, 2, 3, 5, 10)
TOLD = (3, 10)
DRAWS = 50


def own_rows(scored: Sequence[Scored]) -> Term | None:
    """Dense sources with twice as many rows as the most that are drawn, so that every point is of the same sources."""
    by_source: dict[str, list[Scored]] = {}
    for pair in scored:
        if not pair[0].is_moe and pair[1].predicted_s:
            by_source.setdefault(pair[0].source, []).append(pair)
    large = {source: own for source, own in sorted(by_source.items()) if len(own) >= 2 * max(NUMBERS)}
    if not large:
        return None
    unknown = {source: median(abs(one.error) for _, one in own) for source, own in large.items()}
    errors = {
        name: {source: _errors(own, learn) for source, own in large.items()}
        for name, learn in LEARNERS.items()
    }
    averages = {name: np.mean(list(each.values()), axis=0) for name, each in errors.items()}
    x = [math.log2(number) for number in NUMBERS]
    chart = Chart(
        [Series(name, x, 100 * y, place=place) for place, (name, y) in enumerate(averages.items())],
        x_label="rows of one's own", y_label="median error of the others, %",
        x_ticks=[(math.log2(number), str(number)) for number in NUMBERS], y_from_zero=True,
        levels=[("with none", round(100 * float(np.mean(list(unknown.values()))), 1))], width=WIDE,
    )  # fmt: skip
    return Term(
        "own rows",
        chart_svg(chart, THEME),
        "What a few rows of one's own are worth to the others",
        _told(errors, unknown),
    )


def _errors(own: Sequence[Scored], learn: few_rows.Learn) -> list[float]:
    """Of a source, for each of NUMBERS."""
    return [few_rows.median_error(own, number, DRAWS, learn) or 0.0 for number in NUMBERS]


def _told(errors: Mapping[str, Mapping[str, Sequence[float]]], unknown: Mapping[str, float]) -> list[str]:
    """Every source with three and with ten rows, by both ways."""
    ways = list(errors)
    lines = [
        f"{DRAWS} draws each, median error of the rows that were not drawn, in %; the picture is the average over sources:",
        "",
        "| source | with none | "
        + " | ".join(f"{number} rows: {way}" for number in TOLD for way in ways)
        + " |",
        "|---|" + "---:|" * (1 + len(TOLD) * len(ways)),
    ]
    for source, alone in unknown.items():
        cells = [f"{100 * errors[way][source][NUMBERS.index(number)]:.1f}" for number in TOLD for way in ways]
        lines.append(f"| {source} | {100 * alone:.1f} | " + " | ".join(cells) + " |")
    return lines
