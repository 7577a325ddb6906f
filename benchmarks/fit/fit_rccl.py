"""Fits the collectives of MI300X on the all-reduces of a whole node, and writes them into the package's profile.

    python -m benchmarks.fit.fit_rccl

The rows are the claims of the system amd_platform: four constants are fitted on those of eight GPUs of one machine; its
groups of two and four and a second machine give the spread. What no row tells is taken alike: a message, and each part of an
all-to-all, passes like a step of the ring; a member copies its own block at half of the memory's bandwidth.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.costs.collective.curve import NodeCurve, Pipe, in_node_s
from meshwright.costs.collective.profile import LARGE_BYTES, ChipCollectives, Spread
from meshwright.evidence.claim.system_card import system
from meshwright.specs.cluster.device import load_device, usual_node

from .collective_constant import Constant, fit_constants
from .packaged_collectives import spread_of, write_part

SYSTEM, CHIP, SOURCE = "amd_platform", "MI300X", "quickreduce (RCCL)"
MICRO, MEBI = 1e-6, 1 << 20
CONSTANTS = (
    Constant("start", 1.5e-5, 1e-6, 5e-5, "s", "kernel launch and first flag or fence"),
    Constant("low.rate", 0.5, 0.02, 0.9, "of links", "flags travel with the data"),
    Constant("bulk.hop", 2e-6, 1e-7, 8e-6, "s", "one chunk's fence and poll"),
    Constant("bulk.rate", 0.75, 0.5, 0.95, "of links", "checksums and protocol; AMD says 48 of 64 GB/s"),
)


class RcclRow(NamedTuple):
    """One published all-reduce within a node: who fits it, members, bytes, seconds."""

    by: str
    num_members: int
    num_bytes: float
    seconds: float


def rows() -> tuple[RcclRow, ...]:
    """Those of the claims that are in one node."""
    found = (claim for claim in system(SYSTEM).claims if "mebibytes" in claim.arguments)
    return tuple(
        RcclRow(
            claim.by,
            claim.arguments["num_gpus"],
            claim.arguments["mebibytes"] * MEBI,
            claim.paper_value * MICRO,
        )
        for claim in found
        if claim.arguments.get("num_nodes", 1) == 1
    )


def fitted_chip() -> ChipCollectives:
    """The curve of a node and its spread on rows that were not fitted."""
    known = rows()
    fitted = [row for row in known if row.by == "fitted_us"]

    def residuals(values: dict[str, float]) -> list[float]:
        return [math.log(_seconds(node_curve(values), row) / row.seconds) for row in fitted]

    curve = node_curve(fit_constants(CONSTANTS, residuals).values)
    tested = [row for row in known if row.by != "fitted_us"]
    small, large = (
        [row for row in tested if (row.num_bytes > LARGE_BYTES) is is_large] for is_large in (False, True)
    )
    most = max(row.num_bytes for row in known)
    return ChipCollectives(curve, Spread(_spread(curve, small), _spread(curve, large)), 8, most)


def node_curve(values: dict[str, float]) -> NodeCurve:
    """A curve on all links of a GPU from the fitted constants."""
    node, device = usual_node(CHIP), load_device(CHIP)
    links = (node.num_devices - 1) * node.bandwidth_bytes_per_s
    low = Pipe(values["start"], 0.0, values["low.rate"] * links)
    bulk = Pipe(values["start"], values["bulk.hop"], values["bulk.rate"] * links)
    copy = device.memory_bandwidth_bytes_per_s / 2
    return NodeCurve(links, low, bulk, copy, direct_low=low, direct_bulk=bulk, message=bulk)


def _seconds(curve: NodeCurve, row: RcclRow) -> float:
    """A group of n uses n - 1 of a GPU's links."""
    links = (row.num_members - 1) * usual_node(CHIP).bandwidth_bytes_per_s
    return in_node_s(curve.on_link(links), "all_reduce", row.num_bytes, row.num_members)


def _spread(curve: NodeCurve, tested: Sequence[RcclRow]) -> float:
    return spread_of(_seconds(curve, row) / row.seconds - 1 for row in tested)


def main() -> int:
    """Write the chip into the package's profile; 0 when done."""
    write_part("chips", CHIP, fitted_chip(), SOURCE)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    raise SystemExit(main())
