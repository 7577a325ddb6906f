"""Collectives: predicted against measured on the published points that were not fitted, beside a plain ring formula.

The points (operation, size, ranks) of the calibration tables are split by a fixed hash. Ours: the curves that come with
the package, which `fit.fit_collectives` fitted on one half (`--refit` does it again, about a minute).
The peer: the textbook ring at 80 % of the nominal link and 2 us of latency a step (`costs.roofline`), which fits nothing.
Per line: number of points, median and 80th percentile of |predicted / measured - 1|, median signed error; then the
peer's median. The number a change must not make worse: the median above 1 MiB, averaged over sources (at most 10 %).

One JSON object on stdout, the table on stderr; 0 where the limit holds, 3 where it does not.

    .venv/bin/python benchmarks/collective_fidelity.py [TABLES] [--refit] [--worst 10]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fit.collective_table import (
    CollectiveRow,
    is_fitted_row,
    read_collectives,
    read_experts,
    read_ratios,
)
from fit.fit_collectives import (
    LINK_BYTES_PER_S,
    CollectiveScore,
    cloud_s,
    expert_s,
    fit_profile,
    is_fitted_expert,
    is_fitted_ratio,
    predicted_s,
    ratio_predicted,
    score,
)

import meshwright
from meshwright.costs.collective.collective import collective_s
from meshwright.costs.collective.profile import LARGE_BYTES, CollectiveProfile, packaged_profile
from meshwright.costs.roofline import LINK_EFFICIENCY

# Where the tables lie when they are beside the checkout.
BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "calibration" / "collectives"
SCHEMA = 1
LIMIT = 0.10  # median error above 1 MiB
PLAIN_LATENCY_S = 2e-6  # of the presets


def main(arguments: Sequence[str] | None = None) -> int:
    """Print table and JSON; 0 where the limit holds or there is no table, 3 where it does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "tables", type=Path, nargs="?", default=BESIDE, help="folder with the collectives tables"
    )
    parser.add_argument("--refit", action="store_true", help="fit again instead of the package's constants")
    parser.add_argument("--worst", type=int, default=10, help="so many of the worst points above 1 MiB")
    options = parser.parse_args(arguments)
    if options.tables == BESIDE and not BESIDE.is_dir():
        print(f"skipped: no folder is given and {BESIDE} is none", file=sys.stderr)
        return 0
    began = time.perf_counter()
    profile = fit_profile(options.tables) if options.refit else packaged_profile()
    rows = [row for row in read_collectives(options.tables) if not is_fitted_row(row)]
    inside = [row for row in rows if row.num_nodes == 1]
    lines = node_lines(profile, inside) | other_lines(profile, rows, options.tables)
    large = {name: line for name, line in lines.items() if name.startswith("source ") and "above" in name}
    mean = statistics.mean(line["median"] for line in large.values())
    show(lines)
    answer = {
        "schema": SCHEMA,
        "meshwright": meshwright.__version__,
        "benchmark": "collective_fidelity",
        "limits": {"median_above_1_mib": LIMIT},
        "median_above_1_mib": mean,
        "lines": lines,
        "worst": worst(profile, inside, options.worst),
        "passed": mean <= LIMIT,
        "wall_s": time.perf_counter() - began,
    }
    print(json.dumps(answer, indent=1))
    return 0 if answer["passed"] else 3


def node_lines(profile: CollectiveProfile, rows: Sequence[CollectiveRow]) -> dict[str, dict[str, float]]:
    """Scores within one node by source, chip and operation, above and up to 1 MiB."""
    groups: dict[str, list[CollectiveRow]] = {}
    for row in rows:
        size = "above 1 MiB" if row.num_bytes > LARGE_BYTES else "up to 1 MiB"
        for name in ("all", f"source {row.source} {row.chip}", f"{row.chip} {row.operation}"):
            groups.setdefault(f"{name}, {size}", []).append(row)

    def ours(row: CollectiveRow) -> float:
        return predicted_s(profile.chips[row.chip].curve, row)

    return {name: line(members, ours, plain_s) for name, members in sorted(groups.items())}


def other_lines(
    profile: CollectiveProfile, rows: Sequence[CollectiveRow], tables: Path
) -> dict[str, dict[str, float]]:
    """Scores of what is not one node's NCCL: ratios over NICs, a slow cloud network, experts."""
    node, found = profile.chips["H100"].curve, {}
    for table in ("nic", "ata"):
        ratios = [row for row in read_ratios(tables) if row.table == table and not is_fitted_ratio(row)]
        pairs = [(ratio_predicted(profile.network, node, row), row.ratio) for row in ratios]
        found[f"ratio table {table}"] = as_line(score(pairs))
    over = [row for row in rows if row.num_nodes > 1]
    for operation in ("all_reduce", "send_receive"):
        for is_large, size in ((True, "above 1 MiB"), (False, "up to 1 MiB")):
            members = [
                row
                for row in over
                if row.operation == operation and (row.num_bytes > LARGE_BYTES) is is_large
            ]
            found[f"vidur over nodes {operation}, {size}"] = line(
                members, lambda row: cloud_s(profile.network, profile.chips[row.chip].curve, row), None
            )
    experts = [row for row in read_experts(tables) if not is_fitted_expert(row)]
    for kernel, curve in profile.expert.items():
        pairs = [(expert_s(curve, row), row.seconds) for row in experts if row.kernel == kernel]
        found[f"experts {kernel}"] = as_line(score(pairs))
    return found


def plain_s(row: CollectiveRow) -> float:
    """The peer: a ring with one latency and one rate."""
    rate = LINK_BYTES_PER_S[row.chip] * LINK_EFFICIENCY
    return collective_s(row.operation, row.num_bytes, row.num_members, PLAIN_LATENCY_S, rate)


def line(
    rows: Sequence[CollectiveRow],
    ours: Callable[[CollectiveRow], float],
    peer: Callable[[CollectiveRow], float] | None,
) -> dict[str, float]:
    """One line of the table; with the peer's median where there is one."""
    found = as_line(score([(ours(row), row.seconds) for row in rows]))
    if peer is not None:
        found["peer_median"] = score([(peer(row), row.seconds) for row in rows]).median
    return found


def as_line(scored: CollectiveScore) -> dict[str, float]:
    """A score as numbers by name."""
    return dict(scored._asdict())


def worst(profile: CollectiveProfile, rows: Sequence[CollectiveRow], count: int) -> list[dict[str, object]]:
    """The points above 1 MiB with the largest errors."""
    found = [
        {**row._asdict(), "error": predicted_s(profile.chips[row.chip].curve, row) / row.seconds - 1}
        for row in rows
        if row.num_bytes > LARGE_BYTES
    ]
    return sorted(found, key=lambda entry: -abs(float(str(entry["error"]))))[:count]


def show(lines: dict[str, dict[str, float]]) -> None:
    """The table, for people."""
    print(f"{'':48}{'points':>7}{'median':>8}{'p80':>8}{'bias':>8}{'peer':>8}", file=sys.stderr)
    for name, numbers in lines.items():
        keys = ("median", "percentile_80", "bias", "peer_median")
        cells = [f"{numbers[key]:8.1%}" if key in numbers else " " * 8 for key in keys]
        print(f"{name:48}{numbers['num_rows']:7.0f}{''.join(cells)}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
