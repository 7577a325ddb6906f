"""ExpertCopies: what `meshwright run` says of copies for the loads of experts of one's own model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.routing.routing_file import read_routing
from meshwright.specs.training.job_report import JobReport
from meshwright.systems.moe.hecate.mechanism import (
    Copies,
    Loads,
    dispatched,
    even_sources,
    imbalance,
    materialized,
    most_received_share,
    moves_of,
    owned,
    sharded,
)


@dataclass(frozen=True)
class ExpertCopies:
    """Owners of experts by load, and copies of the busy ones: what they balance and what they move, on your own loads."""

    loads: str = option("", "A file with a line for each layer: tokens by expert, by commas.")
    routing: str = option("", "Or a routing trace: .npz, .jsonl of Megatron-LM, .npy of ExFlow.")
    devices: int = option(8, "Devices among which experts are divided.", least=2)
    node: int = option(8, "Devices of a node.", least=1)
    overlap: int = option(4, "Busiest experts of a layer that are copied.", least=0)
    memory: int = option(0, "Copies that fit on a device; 0: as many as are copied.", least=0)
    runs: ClassVar[str] = "job:copies_of"


def copies_of(job: ExpertCopies, seed: int, said: object) -> JobReport:
    """Plan the copies of one step. Raises SpecError where the file has no such loads, or experts do not divide."""
    loads_LX = _loads_of(job)
    num_experts, nodes = loads_LX.shape[1], [device // job.node for device in range(job.devices)]
    if num_experts % job.devices:
        raise SpecError(f"{num_experts} experts on {job.devices} devices", allowed="as many on each device")
    overlap = min(job.overlap, num_experts)
    plain = owned(np.arange(num_experts) * job.devices // num_experts, job.devices)
    owners_LX = sharded(loads_LX, overlap, nodes)
    copies = [
        materialized(loads, owners, overlap, job.memory or overlap, nodes)
        for loads, owners in zip(loads_LX, owners_LX, strict=True)
    ]
    before = [_imbalance(loads, plain, nodes) for loads in loads_LX]
    behind = [_imbalance(loads, each, nodes) for loads, each in zip(loads_LX, copies, strict=True)]
    moved = [len(moves_of(owners, each)) for owners, each in zip(owners_LX, copies, strict=True)]
    share = max(most_received_share(owners, each) for owners, each in zip(owners_LX, copies, strict=True))
    lines = [
        f"{len(loads_LX)} layers of {num_experts} experts on {job.devices} devices; busiest device over the mean:",
        "layer   in a row   with copies   copies",
        *(
            f"{n:5d}   {a:8.2f}   {b:11.2f}   {c:6d}"
            for n, (a, b, c) in enumerate(zip(before, behind, moved, strict=True))
        ),
        f"mean    {np.mean(before):8.2f}   {np.mean(behind):11.2f}   {np.mean(moved):6.1f}",
        f"a copy moves an expert's parameters and its gradient once; a device receives at most {share:.1%} of a layer",
    ]
    data = {
        "max_over_mean": {"in_a_row": before, "with_copies": behind}, "num_copies": moved,
        "most_received_share": share, "owners": owners_LX.tolist(),
        "copies": [[np.flatnonzero(row).tolist() for row in each] for each in copies],
    }  # fmt: skip
    return JobReport(lines, data)


def _loads_of(job: ExpertCopies) -> Loads:
    if bool(job.loads) == bool(job.routing):
        raise SpecError(
            f"loads={job.loads!r} and routing={job.routing!r}",
            allowed="one of them: a table of loads, or a routing trace",
        )
    return read_loads(job.loads) if job.loads else read_routing(job.routing).counts.astype(np.float64)


def read_loads(path: str) -> Loads:
    """[L, X]. Raises SpecError where lines are no equal numbers of loads that are finite and not negative."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        rows = [[float(each) for each in line.split(",")] for line in text.splitlines() if line.strip()]
        found = np.array(rows, np.float64)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{path}: {error}", allowed="a line for each layer, as many numbers in each, by commas"
        ) from None
    if found.ndim != 2 or not np.isfinite(found).all() or (found < 0).any() or not found.sum(1).all():
        raise SpecError(
            f"{path} has loads that are negative, not finite, or none", allowed="tokens of each expert"
        )
    return found


def _imbalance(loads_X: Loads, copies_XD: Copies, nodes: list[int]) -> float:
    return imbalance(dispatched(even_sources(loads_X, len(nodes)), copies_XD, nodes))
