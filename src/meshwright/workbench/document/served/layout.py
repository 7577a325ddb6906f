"""A load that one layout served: its figures, the batch and the blocks over time, latencies against how much comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.api.loads.load_text import objective_words, served_row, share_text
from meshwright.planner.serving.served_plan import ENOUGH, ServedPlan
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.page.report import Figure
from meshwright.serving.loop.occupancy_log import OccupancyLog
from meshwright.serving.loop.report import PERCENTILES, LatencyObjective
from meshwright.workbench.document.column import Column
from meshwright.workbench.document.document import SeriesLine, SeriesSection

MOST_POINTS = 400  # of a line over time
MONEY = ("USD/M tokens", "kWh/M tokens")


def load_figures(
    served: ServedPlan, occupancies: Sequence[OccupancyLog], objective: LatencyObjective
) -> list[Figure]:
    """Headline figures, in the words of the row that a search has of the same plan."""
    report, row = served.report, served_row(served)
    fullest = max((max(each.num_held, default=0) for each in occupancies), default=0)
    good = f"{share_text(report.good_share)} are within {objective_words(objective)}"
    found = [
        Figure("TTFT p50", row["TTFT p50"], _others(report.ttft_s)),
        Figure("TPOT p50", row["TPOT p50"], _others(report.tpot_s)),
        Figure("good requests/s", row["good/s"], good),
        Figure("tokens/s", row["tokens/s"], f"of output, and {report.input_tokens_per_s:,.0f} of prompts"),
        Figure("devices", f"{served.plan.num_devices:,}", f"as {served.plan.name}"),
        Figure(
            "blocks held at most", share_text(fullest / served.num_blocks),
            f"of the {served.num_blocks:,} of a replica, {served.plan.block_tokens} tokens each",
        ),
    ]  # fmt: skip
    if report.num_refused:
        found.append(Figure("refused", f"{report.num_refused:,}", "requests that can never be served"))
    if report.num_preemptions:
        found.append(
            Figure("preemptions", f"{report.num_preemptions:,}", "blocks ran out, and some began again")
        )
    return [*found, *(Figure(name, row[name], "all devices, all the time") for name in MONEY if name in row)]


def _others(figures: Any) -> str:
    return ", ".join(f"{name} {quantity(figures[name], 's')}" for name in PERCENTILES if name != "p50")


def occupancy_sections(occupancies: Sequence[OccupancyLog], served: ServedPlan) -> list[SeriesSection]:
    """How many ran and waited, and how many blocks were held, of all replicas together."""
    ends = [(each.time_s[0], each.time_s[-1]) for each in occupancies if each.time_s]
    if not ends:
        return []
    at = np.linspace(min(first for first, _ in ends), max(last for _, last in ends), MOST_POINTS)

    def line(label: str, name: str) -> SeriesLine:
        total = sum((_sampled(each, name, at) for each in occupancies), np.zeros(len(at)))
        return SeriesLine(label, Column.of_seconds(at), Column.of_seconds(total))

    limits = (
        f"At most {served.plan.max_sequences:,} sequences and {served.plan.max_batch_tokens:,} tokens a step"
    )
    of_all = f" of a replica; {len(occupancies):,} replicas together" if len(occupancies) > 1 else ""
    there = Column.of_seconds(np.full(len(at), served.num_blocks * len(occupancies)))
    return [
        SeriesSection(
            "batch", "Batch over time", [line("run", "num_running"), line("wait", "num_waiting")], "time", "sequences",
            "s", note=f"{limits}{of_all}.",
        ),
        SeriesSection(
            "blocks", "Block pool over time",
            [line("held", "num_held"), SeriesLine("all there are", Column.of_seconds(at), there)], "time",
            f"blocks of {served.plan.block_tokens} tokens", "s",
            note="Keys and values of those who run; where no block is left the last who came begins again.",
        ),
    ]  # fmt: skip


def _sampled(log: OccupancyLog, name: str, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """A replica's numbers as they were at some moments; none before its first entry, and none behind its last."""
    times = np.asarray(log.time_s)
    values = np.concatenate(([0.0], getattr(log, name), [0.0]))
    place = np.searchsorted(times, at, side="right")
    return np.asarray(np.where(at > (times[-1] if len(times) else -math.inf), 0.0, values[place]))


def against_load_sections(
    points: Sequence[tuple[float, ServedPlan]], objective: LatencyObjective
) -> list[SeriesSection]:
    """Latencies of one layout at several rates (requests a second, rising), with what is asked for as a line."""
    enough = [rate for rate, each in points if each.report.good_share >= ENOUGH]
    share = share_text(ENOUGH, 0)
    said = (
        f"Of these rates {max(enough):.4g} requests a second is the highest of which {share} are good."
        if enough
        else f"At none of these rates {share} of the requests are good."
    )
    note = f"{said} What is more than the layout can do has no end: its latencies grow with the number of requests."
    charts = (
        _against("ttft", "Time to first token", points, objective.ttft_s, note),
        _against("tpot", "Time per output token", points, objective.tpot_s),
    )
    return [each for each in charts if each.lines]


def _against(
    id: str, name: str, points: Sequence[tuple[float, ServedPlan]], limit_s: float, note: str = ""
) -> SeriesSection:
    """One of a report's times, `id`_s."""
    lines = []
    for share in PERCENTILES:
        known = [(rate, getattr(each.report, f"{id}_s")[share]) for rate, each in points]
        known = [(rate, value) for rate, value in known if math.isfinite(value)]
        if known:
            lines.append(SeriesLine(share, *map(Column.exact, zip(*known, strict=True))))
    if math.isfinite(limit_s):
        ends = [points[0][0], points[-1][0]]
        lines.append(SeriesLine("objective", Column.exact(ends), Column.exact([limit_s, limit_s])))
    title, across = f"{name} against load", "requests a second"
    return SeriesSection(id, title, lines, across, name.lower(), "", "s", note, is_log=True)
