"""Pictures of how sure a prediction is: what makes intervals wide, rows inside, peaks of memory, chances to fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshwright.costs.step.profile import packaged_step_profile
from meshwright.evidence.tables.memory_column import column_of
from meshwright.evidence.tables.score import Scored, score
from meshwright.evidence.tables.table import GIB
from meshwright.evidence.unseen.reliability import reliability
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_trait import step_shares
from meshwright.reports import Chart, Series, chart_svg
from meshwright.reports.chart.bars import bars_svg

from ..training_example import JOBS, example
from .term import GREY, THEME, WIDE, Term, around, of_source, percent, points, power_ticks

WITHIN = (0.72, 0.88)  # what an 80 % interval should hold of rows that are left out
COUNTED = ("reserved", "allocated", "device")  # most rows first, so that the others are seen
LEAST_VARIANCE = 0.005  # of a step's: less is not drawn


def parts(scored: Sequence[Scored]) -> Term:
    """Of the example's plans: which kinds of work their variance is of. The rows are not asked."""
    width = packaged_step_profile().fit.width
    bars, told = {}, []
    for label in JOBS:
        plan, cluster = example(label)
        found = predict(plan, cluster)
        shares = step_shares(plan, cluster, found.parts, found.step.basis)
        each = {name: (spread * shares[name]) ** 2 for name, spread in width.spreads.items()}
        total = sum(each.values())
        bars[label] = {
            name: value / math.sqrt(total) for name, value in each.items() if value >= LEAST_VARIANCE * total
        }
        below, above = (end / found.step.value - 1 for end in (found.step.low, found.step.high))
        told.append(f"{label}: {percent(below, is_signed=True)} to {percent(above, is_signed=True)}")
    return Term(
        "interval parts", bars_svg(bars, "share", title="what a step's variance is of", theme=THEME),
        "What makes the interval of a step wide: shares of its variance by kind of work, and its standard deviation",
        [f"The 80 % intervals: {'; '.join(told)}."],
    )  # fmt: skip


def coverage(scored: Sequence[Scored]) -> Term:
    """Every source without itself: the share of rows inside over the width of the intervals."""
    sources = sorted({row.source for row, _ in scored})
    by_source = {source: of_source(scored, source) for source in sources}
    bars = {
        source: {
            "faster than its interval": float(sum(row.measured_s < (one.low_s or 0.0) for row, one in own)),
            "inside": float(
                sum((one.low_s or 0.0) <= row.measured_s <= (one.high_s or 0.0) for row, one in own)
            ),
            "slower": float(sum(row.measured_s > (one.high_s or 0.0) for row, one in own)),
        }
        for source, own in by_source.items()
    }
    pooled = score(scored)
    scores = {source: score(own) for source, own in by_source.items()}
    inside = [name for name, each in scores.items() if WITHIN[0] <= (each.coverage or 0.0) <= WITHIN[1]]
    below = [name for name, each in scores.items() if (each.coverage or 0.0) < WITHIN[0]]
    widths = sorted(each.half_width or 0.0 for each in scores.values())
    lines = [
        f"Of {pooled.num_rows} rows {percent(pooled.coverage or 0.0)} are inside their 80 % interval, source by source "
        f"{percent(WITHIN[0])} to {percent(WITHIN[1])} in {len(inside)} of {len(scores)}. Too narrow are those of "
        f"{', '.join(below) or 'none'}; the others are too wide, mostly of few rows. Median half widths are "
        f"{percent(widths[0])} to {percent(widths[-1])} of the step.",
    ]
    return Term(
        "interval coverage", bars_svg(bars, "rows", title="rows inside their interval", theme=THEME),
        "Rows inside their 80 % interval, source by source", lines,
    )  # fmt: skip


def peaks(scored: Sequence[Scored]) -> Term | None:
    """Measured peaks of memory over predicted ones, by what their column counts."""
    known = [pair for pair in scored if pair[0].peak_bytes and pair[1].predicted_peak_bytes]
    if not known:
        return None
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for row, one in known:
        at = (math.log2((one.predicted_peak_bytes or 0.0) / GIB), math.log2((row.peak_bytes or 0.0) / GIB))
        found.setdefault(column_of(row).counts, {})[row.row_id] = at
    ticks = power_ticks(2.0**value for each in found.values() for at in each.values() for value in at)
    ends = [ticks[0][0], ticks[-1][0]]
    chart = Chart(
        [
            *(points(counts, found[counts], place) for place, counts in enumerate(COUNTED) if counts in found),
            Series("", ends, ends, place=GREY, dashed=True),
        ],
        x_label="predicted peak, GiB", y_label="measured peak, GiB", x_ticks=ticks, y_ticks=ticks,
        x_range=around(ticks), y_range=around(ticks), width=WIDE, height=400,
    )  # fmt: skip
    told = []
    for counts, each in sorted(found.items()):
        errors = [abs(2.0 ** (x - y) - 1) for x, y in each.values()]
        told.append(f"{counts} {percent(np.median(errors), 1)} ({len(errors)})")
    inside = np.mean([(row.peak_bytes or 0.0) <= (one.upper_peak_bytes or 0.0) for row, one in known])
    lines = [
        f"Median error by what is counted (rows): {', '.join(told)}. {percent(inside, 1)} of the {len(known)} peaks "
        "are within the bound that is told beside what is expected.",
    ]
    return Term("memory peaks", chart_svg(chart, THEME), "Peaks of memory, measured over predicted", lines)


def reliability_diagram(scored: Sequence[Scored]) -> Term | None:
    """How often chances that memory is enough came true."""
    found = reliability(scored)
    if not found.levels:
        return None
    ticks = [(level, f"{percent(level)}") for level in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    chart = Chart(
        [
            Series("", [0.0, 1.0], [0.0, 1.0], place=GREY, dashed=True),
            Series("", found.levels, found.observed, form="line", place=0),
            Series("observed", found.levels, found.observed, form="points", place=0),
        ],
        x_label="predicted chance that so much memory is enough", y_label="share of runs for which it was",
        x_ticks=ticks, y_ticks=ticks, x_range=(0.0, 1.0), y_range=(0.0, 1.0), width=WIDE, height=360, legend=False,
    )  # fmt: skip
    lines = [
        f"{found.num_rows} measured peaks of {found.num_sources} sources, each source weighing alike: the shares are "
        f"{100 * (found.error or 0.0):.1f} points from their chances in the mean. Runs with a measured peak, which all fit, "
        f"were given a chance of {percent(found.fit_chance or 0.0)} in the mean.",
    ]
    return Term(
        "memory chances",
        chart_svg(chart, THEME),
        "Chances that memory is enough, and how often it was",
        lines,
    )
