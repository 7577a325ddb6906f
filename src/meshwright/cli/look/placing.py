"""`meshwright place`: where experts stand, so that tokens stay on their device and devices have even loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import api
from meshwright.api.subjects.placing import FITTED_SHARE, PlacementTrial, StepsTrial
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result, table_of
from meshwright.cli.look.placing_view import placement_rows, steps_rows, write_growth, write_trade_off
from meshwright.specs.error import SpecError

PLACEMENT = ".experts.json"  # of -o: the first placement of the table
PICTURE = ".svg"  # of -o: every placement of the table
EXPLAINED = (
    "a move is a row of a token from its expert in one layer to its expert in the next; by chance 1 - 1 / devices of them "
    "leave the device; by loads alone: the same of experts that know nothing of the last layer's",
    "busiest: rows of the busiest device over the mean, mean of the layers; experts take as many times an even split's",
)


@writes(PLACEMENT, PICTURE)
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
    by_steps: Annotated[
        int,
        typer.Option(
            "--by-steps",
            help="Place every so many recorded steps by themselves: how affinity grows. 0: all of them together.",
            min=0,
        ),
    ] = 0,
) -> Result:
    """Place experts on devices by where tokens went: moves that leave a device, and the busiest device, on other tokens.

    -o NAME.experts.json writes the placement, of the first algorithm; -o NAME.svg draws all of them.
    """
    if by_steps:
        return _by_steps(api.place_over_steps(routing, devices, nodes, by or (), fitted, by_steps))
    trial = api.place_experts(routing, devices, nodes, by or (), fitted)
    forms = {
        PLACEMENT: lambda path: trial.rows[0].placement.save(path),
        PICTURE: lambda path: write_trade_off(trial, path),
    }
    view = [Text(_head(trial)), table_of(placement_rows(trial))]
    return Result(_data(trial), view, forms, explanation=EXPLAINED)


def _by_steps(found: tuple[StepsTrial, ...]) -> Result:
    """Every run of steps fitted to its own first tokens, and tried on its others."""
    trial = found[-1].trial
    data = {
        **_facts(trial),
        "kind": "expert placements by steps",
        "steps": [
            {"first": each.first, "last": each.last, **_tried(each.trial)} for each in found
        ],
    }  # fmt: skip
    text = (
        f"{trial.fitted.source or 'routing'} ({trial.fitted.origin}), {trial.shape.num_devices} devices on "
        f"{trial.shape.num_nodes} nodes; {len(found)} runs of steps, each by itself"
    )
    view = [Text(text), table_of(steps_rows(found))]
    forms = {PLACEMENT: _refuse, PICTURE: lambda path: write_growth(found, path)}
    return Result(data, view, forms, explanation=EXPLAINED)


def _refuse(path: Path) -> None:
    """A placement of which steps?"""
    raise SpecError(
        f"{path} of --by-steps, which makes several placements",
        allowed=f"NAME{PICTURE}, or a table (.json, .txt)",
        next="leave --by-steps out, or cut the trace",
    )


def _data(trial: PlacementTrial) -> dict[str, Any]:
    return {"kind": "expert placements", **_facts(trial), **_tried(trial)}


def _facts(trial: PlacementTrial) -> dict[str, Any]:
    return {
        "origin": trial.fitted.origin,
        "source": trial.fitted.source,
        "num_devices": trial.shape.num_devices,
        "num_nodes": trial.shape.num_nodes,
    }


def _tried(trial: PlacementTrial) -> dict[str, Any]:
    return {
        "num_fitted": trial.fitted.num_tokens,
        "num_tried": trial.others.num_tokens,
        "affinity_bits": trial.affinity_bits,
        "placements": [
            {
                "name": each.name, "moved": each.moved, "moved_fitted": each.moved_fitted,
                "moved_nodes": each.moved_nodes, "moved_by_loads": each.moved_by_loads, "imbalance": each.imbalance,
            }
            for each in trial.rows
        ],
    }  # fmt: skip


def _head(trial: PlacementTrial) -> str:
    devices, nodes = trial.shape
    return (
        f"{trial.fitted.source or 'routing'} ({trial.fitted.origin}), {devices} devices on {nodes} nodes; fitted to "
        f"{trial.fitted.num_tokens:,} tokens, tried on {trial.others.num_tokens:,} others; affinity "
        f"{trial.affinity_bits:.3f} bits"
    )
