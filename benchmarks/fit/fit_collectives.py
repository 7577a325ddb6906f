"""Fits the constants of collectives on one half of published tables, and scores them on the other half.

    python -m benchmarks.fit.fit_collectives TABLES -o DIR

TABLES is the folder with the collectives tables of the calibration set; DIR receives `collectives_nccl.json`, the
package data. Every constant has a physical range (`collective_constant`); the
fit says which of them end at its edge. Residuals are those of log(predicted / measured), with a soft loss, because
tables have single rows that are off by a factor of two.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.costs.collective.curve import (
    NetworkCurve,
    NodeCurve,
    Pipe,
    Span,
    across_nodes_ways,
    fastest,
    in_node_s,
    ring_over_nodes_s,
)
from meshwright.costs.collective.expert import ExpertCurve
from meshwright.costs.collective.profile import (
    LARGE_BYTES,
    PROFILE_FILE,
    ChipCollectives,
    CollectiveProfile,
    NetworkCollectives,
    Spread,
)
from meshwright.costs.cost import rounded

from . import fit_efa, fit_rccl
from .collective_constant import (
    EXPERT_CONSTANTS,
    NETWORK_CONSTANTS,
    NODE_CONSTANTS,
    SWITCH_CONSTANTS,
    Fit,
    fit_constants,
)
from .collective_table import (
    CollectiveRow,
    ExpertRow,
    RatioRow,
    is_fitted,
    is_fitted_row,
    read_collectives,
    read_experts,
    read_ratios,
)
from .packaged_collectives import DIGITS, network_curve, warn_of_edges

logger = logging.getLogger(__name__)

# Nominal NVLink rate of one GPU in one direction: data sheets of A100, H100, B200 (NVLink 3, 4, 5).
LINK_BYTES_PER_S = {"A100": 300e9, "H100": 450e9, "B200": 900e9}
HAS_SWITCH = {
    "A100": False,
    "H100": True,
    "B200": True,
}  # NVLink SHARP needs the third generation of the switch
RATIO_GPUS_PER_NODE = 8
RATIO_NIC_BYTES_PER_S = (
    50e9  # assumed: the ratio tables do not say the NIC; 400 Gb/s for each GPU as in an HGX H100
)
# The network of the vidur table is not named; these two numbers are read off its largest messages: one pair of GPUs
# on two nodes, and the most that any placement moves out of one node.
CLOUD_NIC_BYTES_PER_S, CLOUD_UPLINK_BYTES_PER_S = 8e9, 12.5e9
MOST_CLOUD_BYTES = (
    1 << 18
)  # rows up to this size fit the latency; larger ones tell that network's rate, which is not ours
EXPERT_MEMBERS = 8
LARGE_WEIGHT = 2.0  # of a row above 1 MiB: those are what training steps move
MOST_ROWS_PER_SERIES = 21  # of one source, operation and placement; a table with 994 sizes is thinned to this
BYTE_VALUES = {"dispatch": 1.0, "combine": 2.0}  # float8 with its scales left out, and bfloat16


class CollectiveScore(NamedTuple):
    """Errors |predicted / measured - 1| of a set of rows."""

    num_rows: int
    median: float
    percentile_80: float
    bias: float


def node_curve(values: dict[str, float], link_bytes_per_s: float) -> NodeCurve:
    """A curve from named constants; rates are shares of the link."""

    def pipe(name: str) -> Pipe:
        rate = values[f"{name}.rate"] * link_bytes_per_s
        hop = values.get(f"{name}.hop", 0.0)
        return Pipe(values[f"{name}.start"], hop, rate, values.get(f"{name}.half", 0.0))

    return NodeCurve(
        link_bytes_per_s,
        ring_low=pipe("ring_low"),
        ring_bulk=pipe("ring_bulk"),
        copy_bytes_per_s=values["copy"],
        direct_low=pipe("direct_low"),
        direct_bulk=pipe("direct_bulk"),
        message=pipe("message"),
        switch=pipe("switch") if "switch.rate" in values else None,
    )


def predicted_s(curve: NodeCurve, row: CollectiveRow) -> float:
    """What the curve says of a row within one node."""
    return in_node_s(curve, row.operation, row.num_bytes, row.num_members, row.dtype)


def fit_chip(chip: str, rows: Sequence[CollectiveRow]) -> tuple[NodeCurve, Fit]:
    """Constants of one chip from rows within one node."""
    rows = thinned(rows)
    link = LINK_BYTES_PER_S[chip]
    constants = (*NODE_CONSTANTS, *(SWITCH_CONSTANTS if HAS_SWITCH[chip] else ()))
    weights = [LARGE_WEIGHT if row.num_bytes > LARGE_BYTES else 1.0 for row in rows]

    def residuals(values: dict[str, float]) -> list[float]:
        curve = node_curve(values, link)
        return [w * math.log(predicted_s(curve, row) / row.seconds) for w, row in zip(weights, rows)]

    fit = fit_constants(constants, residuals)
    return node_curve(fit.values, link), fit


def thinned(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """At most MOST_ROWS_PER_SERIES sizes of each source, operation and placement, evenly by rank of size."""
    series: dict[tuple[object, ...], list[CollectiveRow]] = {}
    for row in rows:
        key = (row.source, row.operation, row.dtype, row.num_members, row.num_nodes)
        series.setdefault(key, []).append(row)
    kept = []
    for members in series.values():
        members.sort(key=lambda row: row.num_bytes)
        step = max(1, math.ceil(len(members) / MOST_ROWS_PER_SERIES))
        kept += members[::step]
    return kept


def ratio_predicted(network: NetworkCurve, node: NodeCurve, row: RatioRow) -> float:
    """What the network curve gives: the ratio of the ring's bus bandwidth, or of the all-to-all's bytes that leave a node."""
    per_node = RATIO_GPUS_PER_NODE
    uplink = per_node * RATIO_NIC_BYTES_PER_S
    span = Span(row.num_nodes, per_node, RATIO_NIC_BYTES_PER_S, uplink)
    members = span.num_members
    if row.table == "nic":
        unlimited = Pipe(node.ring_bulk.start_s, node.ring_bulk.hop_s, math.inf)
        seconds = ring_over_nodes_s(network, "all_reduce", row.num_bytes, span, unlimited)
        return 2 * (members - 1) / members * row.num_bytes / seconds / uplink
    far_bytes = row.num_bytes * (members - per_node) / members
    ways = across_nodes_ways(node, network, "all_to_all", row.num_bytes, span)
    return far_bytes / min(way.seconds for way in ways) / RATIO_NIC_BYTES_PER_S


def cloud_s(network: NetworkCurve, node: NodeCurve, row: CollectiveRow) -> float:
    """A row over nodes, on the network of the vidur table."""
    per_node = row.num_members // row.num_nodes
    uplink = min(CLOUD_UPLINK_BYTES_PER_S, per_node * CLOUD_NIC_BYTES_PER_S)
    span = Span(row.num_nodes, per_node, CLOUD_NIC_BYTES_PER_S, uplink)
    return fastest(across_nodes_ways(node, network, row.operation, row.num_bytes, span)).seconds


def fit_network(
    nodes: Mapping[str, NodeCurve], ratios: Sequence[RatioRow], small: Sequence[CollectiveRow]
) -> tuple[NetworkCurve, Fit]:
    """Constants between nodes from the ratio tables and from small messages over two nodes; `nodes` by chip."""
    small = thinned([row for row in small if row.num_bytes <= MOST_CLOUD_BYTES])

    def residuals(values: dict[str, float]) -> list[float]:
        network = network_curve(values)
        found = [math.log(ratio_predicted(network, nodes["H100"], row) / row.ratio) for row in ratios]
        times = [cloud_s(network, nodes[row.chip], row) / row.seconds for row in small]
        return found + [math.log(share) for share in times]

    fit = fit_constants(NETWORK_CONSTANTS, residuals)
    return network_curve(fit.values), fit


def expert_s(curve: ExpertCurve, row: ExpertRow) -> float:
    """What the curve says of a dispatch or combine."""
    return curve.seconds(row.num_tokens, row.width, row.topk, row.num_experts, EXPERT_MEMBERS, row.num_sms)


def fit_expert(kernel: str, rows: Sequence[ExpertRow]) -> tuple[ExpertCurve, Fit]:
    """Constants of one kernel."""

    def curve_of(values: dict[str, float]) -> ExpertCurve:
        rates = values["sm_rate"], values["link_rate"]
        return ExpertCurve(values["start"], *rates, BYTE_VALUES[kernel])

    def residuals(values: dict[str, float]) -> list[float]:
        curve = curve_of(values)
        return [math.log(expert_s(curve, row) / row.seconds) for row in rows]

    fit = fit_constants(EXPERT_CONSTANTS, residuals)
    return curve_of(fit.values), fit


def is_fitted_expert(row: ExpertRow) -> bool:
    """The split of dispatch and combine, by shape."""
    return is_fitted(row.width, row.num_tokens, row.topk, row.num_experts, row.num_sms)


def is_fitted_ratio(row: RatioRow) -> bool:
    """The split of the ratio tables, by table, size and nodes."""
    return is_fitted(row.table, int(row.num_bytes), row.num_nodes)


def score(pairs: Sequence[tuple[float, float]]) -> CollectiveScore:
    """Of (predicted, measured) pairs."""
    errors = np.asarray([predicted / measured - 1 for predicted, measured in pairs])
    size = np.abs(errors)
    return CollectiveScore(
        len(pairs), float(np.median(size)), float(np.percentile(size, 80)), float(np.median(errors))
    )


def fit_profile(tables: Path) -> CollectiveProfile:
    """Everything: fitted on one half of the tables in `tables`, spreads from the other half."""
    table = read_collectives(tables)
    rows = [row for row in table if row.num_nodes == 1]
    chips = {chip: _fitted_chip(chip, [row for row in rows if row.chip == chip]) for chip in LINK_BYTES_PER_S}
    chips[fit_rccl.CHIP] = fit_rccl.fitted_chip()
    ratios, nodes = read_ratios(tables), {name: chip.curve for name, chip in chips.items()}
    over = [row for row in table if row.num_nodes > 1 and is_fitted_row(row)]
    network, network_fit = fit_network(nodes, [row for row in ratios if is_fitted_ratio(row)], over)
    warn_of_edges("network", network_fit)
    node = nodes["H100"]
    tested = [(ratio_predicted(network, node, row), row.ratio) for row in ratios if not is_fitted_ratio(row)]
    experts = {}
    for kernel in BYTE_VALUES:
        known = [row for row in read_experts(tables) if row.kernel == kernel and is_fitted_expert(row)]
        experts[kernel], expert_fit = fit_expert(kernel, known)
        warn_of_edges(kernel, expert_fit)
    sources = tuple(sorted(Counter(row.source for row in rows))) + (
        "simai",
        "aiconfigurator (DeepEP)",
        fit_rccl.SOURCE,
        fit_efa.SOURCE,
    )
    networks = {
        "infiniband": NetworkCollectives(network, score(tested).percentile_80),
        "efa": fit_efa.fitted_network(node),
    }
    return CollectiveProfile(chips, networks, experts, sources)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the profile; 0 when done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", type=Path, help="folder with the collectives tables")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder that receives the profile")
    options = parser.parse_args(arguments)
    profile = fit_profile(options.tables)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / PROFILE_FILE
    path.write_text(json.dumps(rounded(profile.to_document(), DIGITS), indent=1) + "\n", encoding="utf-8")
    logger.info("wrote %s", path)
    return 0


def _fitted_chip(chip: str, rows: Sequence[CollectiveRow]) -> ChipCollectives:
    curve, fit = fit_chip(chip, [row for row in rows if is_fitted_row(row)])
    warn_of_edges(chip, fit)
    tested = [row for row in rows if not is_fitted_row(row)]
    spreads = [
        _spread(curve, [row for row in tested if (row.num_bytes > LARGE_BYTES) is large])
        for large in (False, True)
    ]
    logger.info("%s: spread up to 1 MiB %.3f, above %.3f", chip, *spreads)
    most_members = max(row.num_members for row in rows)
    return ChipCollectives(curve, Spread(*spreads), most_members, max(row.num_bytes for row in rows))


def _spread(curve: NodeCurve, rows: Sequence[CollectiveRow]) -> float:
    """80th percentile of the errors, averaged over sources: a source with a thousand rows is still one source."""
    sources: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append((predicted_s(curve, row), row.seconds))
    return statistics.mean(score(pairs).percentile_80 for pairs in sources.values())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    raise SystemExit(main())
