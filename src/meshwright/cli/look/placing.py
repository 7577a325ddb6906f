"""`meshwright place`: where experts stand, so that tokens stay on their device and devices have even loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import api
from meshwright.api.subjects.placing import FITTED_SHARE, PlacementTrial
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result, table_of

PLACEMENT = ".experts.json"  # of -o: the first placement of the table


@writes(PLACEMENT)
def place(
    out: Output,
    routing: Annotated[
        Path,
        typer.Argument(
            metavar="ROUTING", help="A routing trace: what `train --record-routing` wrote, .jsonl, .npy."
        ),
    ],
    devices: Annotated[int, typer.Option("--devices", help="Devices of an expert-parallel group.")],
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes that these are on, as many on each.")] = 1,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", help="An algorithm (meshwright list expert_placements); several make a table; all."
        ),
    ] = None,
    fitted: Annotated[
        float,
        typer.Option("--fitted", help="Share of the tokens, the first ones, to which placements are fitted."),
    ] = FITTED_SHARE,
) -> Result:
    """Place experts on devices by where tokens went: moves that leave a device, and the busiest device, on other tokens.

    -o NAME.experts.json writes the placement, of the first algorithm.
    """
    trial = api.place_experts(routing, devices, nodes, by or (), fitted)
    data = {
        "kind": "expert placements",
        "origin": trial.fitted.origin,
        "source": trial.fitted.source,
        "num_devices": devices,
        "num_nodes": nodes,
        "num_fitted": trial.fitted.num_tokens,
        "num_tried": trial.others.num_tokens,
        "affinity_bits": trial.affinity_bits,
        "placements": [
            {
                "name": each.name, "moved": each.moved, "moved_fitted": each.moved_fitted,
                "moved_nodes": each.moved_nodes, "imbalance": each.imbalance,
            }
            for each in trial.rows
        ],
    }  # fmt: skip
    explained = (
        "a move is a row of a token from its expert in one layer to its expert in the next; by chance 1 - 1 / devices of "
        "them leave the device",
        "busiest: rows of the busiest device over the mean, mean of the layers; experts take as many times an even split's",
    )
    forms = {PLACEMENT: lambda path: trial.rows[0].placement.save(path)}
    return Result(data, [Text(_head(trial)), table_of(_rows(trial))], forms, explanation=explained)


def _head(trial: PlacementTrial) -> str:
    devices, nodes = trial.shape
    return (
        f"{trial.fitted.source or 'routing'} ({trial.fitted.origin}), {devices} devices on {nodes} nodes; fitted to "
        f"{trial.fitted.num_tokens:,} tokens, tried on {trial.others.num_tokens:,} others; affinity "
        f"{trial.affinity_bits:.3f} bits"
    )


def _rows(trial: PlacementTrial) -> list[dict[str, Any]]:
    def share(value: float | None) -> str:
        return "copies" if value is None else f"{value:.1%}"

    rows = []
    for each in trial.rows:
        row = {"by": each.name, "leave the device": share(each.moved), "fitted": share(each.moved_fitted)}
        if trial.shape.num_nodes > 1:
            row["leave the node"] = share(each.moved_nodes)
        rows.append({**row, "busiest": f"{each.imbalance:.2f}"})
    return rows
