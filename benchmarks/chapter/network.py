"""Pictures of networks: all-gathers on EFA beside InfiniBand, and what waiting for the slowest of N nodes makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.costs.collective.curve import NetworkCurve
from meshwright.costs.collective.profile import packaged_profile
from meshwright.costs.kernel.curve import family_of
from meshwright.costs.step.profile import packaged_step_profile
from meshwright.costs.step.step_costs import StepConstants, slowest_of
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.score import Scored
from meshwright.evidence.tables.table import TrainingRow
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_part import WAITING, is_beside
from meshwright.prediction.step_program import StepProgram, simulated_s
from meshwright.reports import Chart, Series, chart_svg

from ..fit import fit_efa
from .term import GREY, THEME, WIDE, Term, around, percent, points, power_ticks

OPERATION = "all_gather"
SHOWN = (2, 8, 32)  # nodes of which curves are drawn
MEBI, GIGA = 1 << 20, 1e9
CROWDING = 0.003  # a member: what a ring between nodes was taken to lose before, linear in its members
EXPOSED = 0.1  # of a step that waits for the network: with less a row says nothing of it
FACTORS = (0.25, 16.0)  # between which the factor of a row is looked for
HALVINGS = 12
CURVE_POINTS, PER_NODE = 60, 8


def efa(scored: Sequence[Scored]) -> Term:
    """Measured all-gathers of two to 32 nodes, the curve of their network, and that of InfiniBand at the same rate."""
    node, rows = packaged_profile().chips[fit_efa.CHIP].curve, fit_efa.rows()
    own = [row for row in rows if row.operation == OPERATION]
    networks = packaged_profile().networks
    series = [each for place, nodes in enumerate(SHOWN) for each in _gathers(own, nodes, place)]
    ticks = power_ticks(row.num_bytes / MEBI for row in own)
    chart = Chart(
        series, x_label="MiB of the whole tensor (lines: the curve of EFA; dashed: InfiniBand at the same rate)",
        y_label="GB/s", x_ticks=ticks, x_range=around(ticks), y_from_zero=True, width=WIDE, height=340,
    )  # fmt: skip
    off = np.median(
        [fit_efa.seconds(node, networks["infiniband"].curve, row) / row.seconds - 1 for row in rows]
    )
    fitted = [abs(fit_efa.seconds(node, networks["efa"].curve, row) / row.seconds - 1) for row in rows]
    lines = [
        f"The curve is fitted on every second size of {len(rows)} published runs of NCCL's tests (all-gather, all-reduce, "
        f"all-to-all; 2 to 32 nodes): median error {percent(np.median(fitted), 1)}; the 80th percentile of the sizes that "
        f"were not fitted is {percent(networks['efa'].spread)}. With InfiniBand's constants at EFA's rate the same runs "
        f"would be priced {percent(abs(off))} too {'fast' if off < 0 else 'slow'} in the median.",
    ]
    return Term(
        "networks",
        chart_svg(chart, THEME),
        "All-gathers over nodes: EFA measured, its curve, InfiniBand",
        lines,
    )


def _gathers(rows: Sequence[fit_efa.EfaRow], nodes: int, place: int) -> list[Series]:
    """What was measured over so many nodes, and what both networks' curves say."""
    found = {
        f"{row.num_bytes / MEBI:.0f} MiB": (
            math.log2(row.num_bytes / MEBI),
            row.num_bytes / row.seconds / GIGA,
        )
        for row in rows
        if row.num_nodes == nodes
    }
    logarithms = np.linspace(
        min(x for x, _ in found.values()), max(x for x, _ in found.values()), CURVE_POINTS
    )
    series = [points(f"{nodes} nodes, measured on EFA", found, place)]
    for fabric in ("efa", "infiniband"):
        curve = packaged_profile().networks[fabric].curve
        sizes = [MEBI * 2.0**each for each in logarithms.tolist()]
        rates = [size / _seconds(nodes, size, curve) / GIGA for size in sizes]
        series.append(Series("", logarithms, rates, place=place, dashed=fabric != fit_efa.FABRIC))
    return series


def _seconds(nodes: int, num_bytes: float, curve: NetworkCurve) -> float:
    """Of the operation over nodes of eight H100, each with the rate of EFA."""
    row = fit_efa.EfaRow(OPERATION, nodes, num_bytes, 0.0, 0)
    return fit_efa.seconds(packaged_profile().chips[fit_efa.CHIP].curve, curve, row)


def slowest(scored: Sequence[Scored]) -> Term | None:
    """The factor of collectives between nodes over their number: both rules, and what rows that wait for them imply."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for pair in scored:
        nodes = _waits_over(pair)
        factor = implied_factor(pair[0]) if nodes else None
        if factor is not None:
            row = pair[0]
            found.setdefault(row.source, {})[row.row_id] = (math.log2(nodes), math.log2(factor))
    if not found:
        return None
    every = [2.0**x for own in found.values() for x, _ in own.values()]
    jitter = packaged_step_profile().fit.typical.jitter
    numbers = range(2, round(max(every)) + 1)
    x_ticks, y_ticks = (
        power_ticks([2.0, *every]),
        power_ticks(2.0**y for own in found.values() for _, y in own.values()),
    )
    chart = Chart(
        [
            *(points(source, own, place) for place, (source, own) in enumerate(sorted(found.items()))),
            Series("", np.log2(numbers), np.log2([by_slowest(each, jitter) for each in numbers]), place=GREY),
            Series("", np.log2(numbers), np.log2([by_members(each) for each in numbers]), place=GREY, dashed=True),
        ],
        x_label="nodes (line: the slowest of N; dashed: crowding, linear in members)",
        y_label="time of collectives between nodes, a factor", x_ticks=x_ticks, y_ticks=y_ticks,
        x_range=around(x_ticks), y_range=around(y_ticks), width=WIDE, height=360,
    )  # fmt: skip
    return Term(
        "slowest node",
        chart_svg(chart, THEME),
        "What waiting for the slowest of N nodes costs",
        _told(found, jitter, scored),
    )


def by_slowest(nodes: int, jitter: float) -> float:
    """The factor, as the package has it."""
    return 1 + jitter * slowest_of(nodes)


def by_members(nodes: int) -> float:
    """The factor that it had before."""
    return 1 + CROWDING * PER_NODE * nodes


def _told(
    found: Mapping[str, Mapping[str, tuple[float, float]]], jitter: float, scored: Sequence[Scored]
) -> list[str]:
    """What the rows of every source imply over what both rules say."""
    implied = {source: [(round(2.0**x), 2.0**y) for x, y in own.values()] for source, own in found.items()}
    pairs = [pair for own in implied.values() for pair in own]
    ours = np.log([y / by_slowest(nodes, jitter) for nodes, y in pairs])
    before = np.log([y / by_members(nodes) for nodes, y in pairs])
    by_source = ", ".join(
        f"{source} {np.median([y / by_slowest(nodes, jitter) for nodes, y in own]):.2f} ({len(own)})"
        for source, own in sorted(implied.items())
    )
    most = max(each.count("gpus") // max(1, each.count("gpus_per_node", PER_NODE)) for each, _ in scored)
    return [
        f"{len(pairs)} rows of {len(found)} sources without a pipeline and with tensor groups within a node, which wait "
        f"for the network for {percent(EXPOSED)} of a step or more: the factor that would make each row's step as measured, "
        f"were everything else right. Off the root (`jitter` {jitter:.3f}) these are by {_either_way(ours)}, off crowding "
        f"({CROWDING:g} a member) by {_either_way(before)}. Implied over the root's, median by source (rows): {by_source}. "
        f"At the {most:,} nodes of the largest row of these tables crowding makes collectives {by_members(most):.1f} times "
        f"as long, the root {by_slowest(most, jitter):.1f} times.",
    ]


def _either_way(logarithms: Sequence[float] | np.ndarray) -> str:
    sizes = np.exp(np.abs(logarithms))
    return f"{np.median(sizes):.2f} times in the median, {np.max(sizes):.1f} times at worst"


def _waits_over(pair: Scored) -> int:
    """Nodes of a row whose step says something of collectives between them; else 0."""
    row, prediction = pair
    per_node = max(1, row.count("gpus_per_node", PER_NODE))
    nodes = row.count("gpus") // per_node
    total = sum(seconds for name, seconds in prediction.parts.items() if not is_beside(name))
    is_plain = row.count("pp", 1) == 1 and row.count("tp", 1) <= per_node and not row.is_moe
    waits = prediction.parts.get(WAITING, 0.0) >= EXPOSED * total > 0
    return nodes if is_plain and nodes > 1 and waits and prediction.predicted_s else 0


def implied_factor(row: TrainingRow) -> float | None:
    """The factor on its collectives between nodes with which the step is as measured; None beyond FACTORS."""
    job = job_of(row)
    made = predict(job.plan, job.cluster).made
    constants = packaged_step_profile().blind_to(row.source).of(family_of(job.cluster.devices[0]) or "")
    low, high = FACTORS
    if not _at(made, constants, low) <= row.measured_s <= _at(made, constants, high):
        return None
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _at(made, constants, middle) < row.measured_s else (low, middle)
    return math.sqrt(low * high)


def _at(made: StepProgram, constants: StepConstants, factor: float) -> float:
    """Seconds of the step with collectives between nodes as long as that, and no jitter."""
    return simulated_s(
        made, replace(constants, network_exchange=constants.network_exchange * factor, jitter=0.0)
    )
