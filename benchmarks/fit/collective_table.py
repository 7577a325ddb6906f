"""Published tables of measured collectives as rows of one shape, and the fixed split into a fitted and a tested half.

Columns and traps: the README of the calibration tables. Sizes are those of the whole tensor (`collective_curve`).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from meshwright.specs.error import SpecError

OPERATION_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_receive", "send_recv": "send_receive"}
BYTES_PER_KB = 1024  # the sizes of the APEX+ table are powers of two
AICONFIGURATOR_CHIPS = {"a100_sxm": "A100", "h100_sxm": "H100", "b200_sxm": "B200"}
DTYPES = {"half": "float16", "float": "float32", "int8": "int8"}
SIMAI_NODE_COLUMNS = {
    "2Node-16GPU(NIC )": 2,
    "4Node-32GPU(NIC)": 4,
    "8Node-64GPU(NIC)": 8,
    "16Node-128GPU(NIC)": 16,
    "32Node-256GPU(NIC)": 32,
    "64Node-512GPU(NIC)": 64,
    "128Node-1024GPU(NIC)": 128,
}


class CollectiveRow(NamedTuple):
    """One measurement: `num_members` GPUs, on `num_nodes` nodes, took `seconds`."""

    source: str
    chip: str
    operation: str
    dtype: str
    num_bytes: float
    num_members: int
    num_nodes: int
    seconds: float


class RatioRow(NamedTuple):
    """One entry of the ratio tables: the share of the nominal bus bandwidth, eight GPUs a node."""

    table: str
    num_bytes: float
    num_nodes: int
    ratio: float


class ExpertRow(NamedTuple):
    """One measurement of a dispatch or combine kernel in a node of eight."""

    kernel: str
    num_tokens: int
    width: int
    topk: int
    num_experts: int
    num_sms: int
    seconds: float


def is_fitted(*key: object) -> bool:
    """Is the point of this key in the fitted half? By a hash, so that every run splits alike."""
    return hashlib.sha256("/".join(map(str, key)).encode()).digest()[0] % 2 == 0


def is_fitted_row(row: CollectiveRow) -> bool:
    """Split by (operation, size, ranks): both number formats, and all sources, of a point are on one side."""
    return is_fitted(row.operation, int(row.num_bytes), row.num_members)


def read_collectives(folder: Path) -> list[CollectiveRow]:
    """All rows with seconds, of every source in `folder`. Raises SpecError where a table is missing."""
    return [*_aiconfigurator(folder), *_apexplus(folder), *_vidur(folder)]


def read_ratios(folder: Path) -> list[RatioRow]:
    """The ratios over NICs for rings ("nic") and for the all-to-all ("ata")."""
    rows = []
    for table in ("nic", "ata"):
        for entry in _entries(folder / f"simai_{table}_ratio.csv"):
            for column, num_nodes in SIMAI_NODE_COLUMNS.items():
                if entry[column]:
                    rows.append(RatioRow(table, float(entry["Size"]), num_nodes, float(entry[column])))
    return rows


def read_experts(folder: Path) -> list[ExpertRow]:
    """Dispatch and combine of DeepEP's kernels for many tokens ("normal")."""
    rows = []
    for entry in _entries(folder / "aiconfigurator_h100_sxm_wideep_deepep_normal_perf.csv"):
        if int(entry["node_num"]) != 1:
            continue
        for kernel in ("dispatch", "combine"):
            rows.append(
                ExpertRow(
                    kernel,
                    num_tokens=int(entry["num_token"]),
                    width=int(entry["hidden_size"]),
                    topk=int(entry["num_topk"]),
                    num_experts=int(entry["num_experts"]),
                    num_sms=int(entry[f"{kernel}_sms"]),
                    seconds=float(entry[f"{kernel}_transmit_us"]) * 1e-6,
                )
            )
    return rows


def _aiconfigurator(folder: Path) -> Iterator[CollectiveRow]:
    for system, chip in AICONFIGURATOR_CHIPS.items():
        for entry in _entries(folder / f"aiconfigurator_nccl_{system}.csv"):
            yield CollectiveRow(
                "aiconfigurator",
                chip,
                OPERATION_NAMES.get(entry["op_name"], entry["op_name"]),
                DTYPES[entry["nccl_dtype"]],
                float(entry["bytes"]),
                int(entry["num_gpus"]),
                1,
                float(entry["latency_ms"]) * 1e-3,
            )


def _apexplus(folder: Path) -> Iterator[CollectiveRow]:
    """A size printed as 0 kB is one below a kilobyte, which one is not said: left out."""
    for entry in _entries(folder / "apexplus_H100-SXM-80GB.csv"):
        nodes, num_bytes = int(entry["num_nodes"]), float(entry["size(kb)"]) * BYTES_PER_KB
        if num_bytes:
            yield CollectiveRow(
                "apexplus",
                "H100",
                OPERATION_NAMES.get(entry["op"], entry["op"]),
                DTYPES[entry["dtype"]],
                num_bytes,
                nodes * int(entry["num_gpus_per_node"]),
                nodes,
                float(entry["time(us)"]) * 1e-6,
            )


def _vidur(folder: Path) -> Iterator[CollectiveRow]:
    for entry in _entries(folder / "vidur_a100_dgx.csv"):
        members, per_node = int(entry["num_workers"]), int(entry["devices_per_node"])
        yield CollectiveRow(
            "vidur",
            "A100",
            OPERATION_NAMES.get(entry["collective"], entry["collective"]),
            "float16",
            float(entry["size_bytes"]),
            members,
            members // per_node,
            float(entry["median_ms"]) * 1e-3,
        )


def _entries(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise SpecError(
            f"there is no table {path}",
            allowed="a folder with the collectives tables of the calibration set",
        )
    with path.open(newline="", encoding="utf-8-sig") as stream:
        yield from csv.DictReader(stream)
