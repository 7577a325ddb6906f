"""Pictures of errors step by step: captured ones, tokens sent once, overlapped exchanges, borrowed kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from meshwright.costs.kernel.curve import family_of
from meshwright.costs.step.profile import packaged_step_profile
from meshwright.costs.step.step_costs import LOST_BESIDE
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.score import Scored
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_part import OVERHEAD
from meshwright.reports import Chart, Series, chart_svg
from meshwright.specs.plan.plan import Plan

from .term import MS, THEME, WIDE, Term, around, percent, points, power_ticks

SHORT_S = 1.0  # steps in which milliseconds count
TENSOR = "tp"


def captured(scored: Sequence[Scored]) -> Term | None:
    """Captured steps with the share of the overhead that is left, and as if nothing were captured."""
    own = _of(scored, lambda plan: plan.software_class.step_share < 1)
    if not own:
        return None
    share = job_of(own[0][0]).plan.software_class.step_share
    whole_s = [(one.predicted_s or 0.0) + one.parts[OVERHEAD] * (1 / share - 1) for _, one in own]
    overhead_s = packaged_step_profile().fit.typical.step_s
    short = [number for number, (row, _) in enumerate(own) if row.measured_s < SHORT_S]
    told = (
        f"{len(own)} captured steps. Beside instructions a step takes {overhead_s * MS:.0f} ms in stacks that launch from "
        f"the host; captured, {percent(share)} of these. {_compared(own, whole_s, short)} in the {len(short)} below "
        f"{SHORT_S:g} s."
    )
    return _both(
        "captured steps", "What a captured step saves", own, whole_s, ("captured", "as if launched"), told
    )


def dispatched(scored: Sequence[Scored]) -> Term | None:
    """Steps that send a token once to each device, and as if they sent a copy for each expert."""
    own = _of(scored, lambda plan: plan.ep > 1 and plan.dispatch == "once")
    if not own:
        return None
    other_s = _otherwise(own, lambda plan: replace(plan, dispatch="copies"))
    told = f"{len(own)} rows of {_sources(own)}. {_compared(own, other_s)}."
    return _both(
        "tokens sent once", "What sending a token once saves", own, other_s, ("once", "copies"), told
    )


def overlapped(scored: Sequence[Scored]) -> Term | None:
    """Steps whose exchanges of tensor parallelism run beside products, and as if products waited for them."""
    own = _of(scored, lambda plan: plan.tp > 1 and TENSOR in plan.overlap)
    if not own:
        return None
    other_s = _otherwise(
        own, lambda plan: replace(plan, overlap=tuple(x for x in plan.overlap if x != TENSOR))
    )
    told = (
        f"{len(own)} rows of {_sources(own)}; products lose {percent(LOST_BESIDE)} of the time of an exchange beside them. "
        f"{_compared(own, other_s)}."
    )
    return _both(
        "overlapped exchanges",
        "What overlapping tensor parallelism saves",
        own,
        other_s,
        ("beside", "waited for"),
        told,
    )


def _of(scored: Sequence[Scored], is_of: Callable[[Plan], bool]) -> list[Scored]:
    """Rows that were predicted, by their plan."""
    return [pair for pair in scored if pair[1].predicted_s and is_of(job_of(pair[0]).plan)]


def _otherwise(own: Sequence[Scored], other: Callable[[Plan], Plan]) -> list[float]:
    """Predicted seconds of the rows without their source, if their plans were others."""
    found = []
    for row, _ in own:
        job, fit = job_of(row), packaged_step_profile().blind_to(row.source)
        found.append(predict(other(job.plan), job.cluster, fit=fit).step.value)
    return found


def _both(
    name: str, title: str, own: Sequence[Scored], other_s: Sequence[float], names: tuple[str, str], told: str
) -> Term:
    """Errors of the same steps, predicted in both ways, over their measured seconds."""
    ticks = power_ticks(row.measured_s for row, _ in own)
    now, other = {}, {}
    for (row, one), seconds in zip(own, other_s, strict=True):
        now[row.row_id] = (math.log2(row.measured_s), 100 * one.error)
        other[row.row_id] = (math.log2(row.measured_s), 100 * (seconds / row.measured_s - 1))
    chart = Chart(
        [points(names[0], now, 0), points(names[1], other, 1)], x_label="measured step, s",
        y_label="error of the step, %", x_ticks=ticks, x_range=around(ticks), width=WIDE,
    )  # fmt: skip
    return Term(name, chart_svg(chart, THEME), title, [told])


def _compared(own: Sequence[Scored], other_s: Sequence[float], numbers: Sequence[int] | None = None) -> str:
    """Median errors in both ways, of some of the rows."""
    known = range(len(own)) if numbers is None else numbers
    now = [abs(own[number][1].error) for number in known]
    other = [abs(other_s[number] / own[number][0].measured_s - 1) for number in known]
    if not now:
        return "No row"
    return f"Median error {percent(float(np.median(now)), 1)}, without the term {percent(float(np.median(other)), 1)}"


def _sources(own: Sequence[Scored]) -> str:
    return ", ".join(sorted({row.source for row, _ in own}))


def borrowed(scored: Sequence[Scored]) -> Term | None:
    """Predicted over measured steps of every chip of a family without measured steps, each with its interval."""
    fitted = packaged_step_profile().fit.constants
    families = [
        (family_of(job_of(row).cluster.devices[0]) or "", row, one) for row, one in scored if one.predicted_s
    ]
    own = sorted(
        ((row.text("gpu").split("-")[0], row, one) for family, row, one in families if family not in fitted),
        key=lambda each: (each[0], each[1].row_id),
    )
    if not own:
        return None
    chips = sorted({chip for chip, _, _ in own})
    series = []
    for place, chip in enumerate(chips):
        found = {
            row.row_id: (float(number), (one.predicted_s or 0.0) / row.measured_s)
            for number, (name, row, one) in enumerate(own)
            if name == chip
        }
        series.append(points(chip, found, place))
    for number, (chip, row, one) in enumerate(own):
        ends = [end / row.measured_s for end in (one.low_s or 0.0, one.high_s or 0.0)]
        series.append(Series("", [number, number], ends, place=chips.index(chip)))
    chart = Chart(
        series, x_label="row", y_label="predicted over measured", levels=[("", 1.0)], y_from_zero=True, width=WIDE,
        x_ticks=[(float(number), row.row_id.rpartition("-")[2]) for number, (_, row, _) in enumerate(own)],
    )  # fmt: skip
    errors = np.array([one.error for _, _, one in own])
    sources = ", ".join(sorted({row.source for _, row, _ in own}))
    inside = sum((one.low_s or 0.0) <= row.measured_s <= (one.high_s or 0.0) for _, row, one in own)
    lines = [
        f"{len(own)} rows ({sources}): median error {percent(np.median(np.abs(errors)), 1)}, bias "
        f"{percent(np.median(errors), 1, is_signed=True)}, at worst {percent(np.abs(errors).max())}; {inside} of {len(own)} "
        "are inside intervals that are a third to either side at least.",
    ]
    return Term(
        "borrowed kernels",
        chart_svg(chart, THEME),
        "Steps on AMD's chips, predicted with borrowed kernels",
        lines,
    )
