"""`meshwright systems` and `meshwright reproduce`: published systems, and their claims recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli.command import command
from meshwright.cli.output import DONE, REFUSED, Output, Result, table_of

PANEL = "Evidence"
EXACT = 1e-6  # a tolerance below it is there for rounding only


def add_to(app: typer.Typer) -> None:
    """Register both commands."""
    command(app, "systems", PANEL)(list_systems)
    command(app, "reproduce", PANEL)(reproduce)


def list_systems(out: Output) -> Result:
    """List the published systems, what of them is simulated and executed, and how many claims are recomputed."""
    from meshwright.evidence import systems

    rows = [card.to_dict() for card in systems()]
    shown = [
        {**row, **{key: "yes" if row[key] else "no" for key in ("simulated", "executed")}} for row in rows
    ]
    shown = [{"claims" if key == "num_claims" else key: value for key, value in row.items()} for row in shown]
    return Result({"systems": rows}, [table_of(shown)])


def reproduce(
    out: Output,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A system; without one, all of them.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="Data that claims read and the package does not have; the card says what.",
        ),
    ] = None,
) -> Result:
    """Recompute the claims of a published system. Exit 3 where a claim fails."""
    from meshwright.evidence import reproduce as recompute
    from meshwright.evidence import systems
    from meshwright.evidence.reproduce import reads_data
    from meshwright.evidence.system_card import system

    def progress(claim: str, share: float) -> None:
        out.note(f"{100 * share:3.0f} %  {claim}")

    cards = systems() if name is None else [system(name)]
    results = [
        recompute(card.name, progress=progress, data=data if name or (data and reads_data(card)) else None)
        for card in cards
    ]
    found = {"systems": results} if name is None else results[0]
    found = {key: value for key, value in found.items() if key != "wall_s"}
    claims = [{"system": result["name"], **claim} for result in results for claim in result["claims"]]
    explained = [f"{claim['claim']}: {claim['kind']}; {claim['how']}" for claim in claims]
    code = DONE if all(claim["passed"] for claim in claims) else REFUSED
    rows = [_row(claim) for claim in claims]
    if name is not None:  # one system: its name in every row only takes room from the claims
        rows = [{key: value for key, value in row.items() if key != "system"} for row in rows]
    for line in _not_run(claims):
        out.note(line)
    return Result(found, [table_of(rows)], explanation=explained, exit_code=code)


def _not_run(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why claims have no value, each reason once."""
    from meshwright.evidence.reproduce import NOT_RUN

    reasons = [claim["how"].partition(NOT_RUN)[2] for claim in claims if claim["our_value"] is None]
    return [f"{NOT_RUN}{reason}" for reason in dict.fromkeys(reasons)]


def _row(claim: dict[str, Any]) -> dict[str, Any]:
    ours, ratio = claim["our_value"], claim["ratio"]
    return {
        "system": claim["system"],
        "claim": claim["claim"],
        "kind": claim["kind"],
        "paper": f"{claim['paper_value']:.5g}",
        "ours": "-" if ours is None else f"{ours:.5g}",
        "ratio": "-" if ratio is None else f"{ratio:.3f}",
        "unit": claim["unit"],
        "tolerance": _tolerance(claim),
        "holds": "yes" if claim["passed"] else "no",
    }


def _tolerance(claim: Mapping[str, Any]) -> str:
    """Relative, or in the claim's unit where the paper's value is zero."""
    allowed = claim["tolerance"]
    if allowed < EXACT:
        return "exact"
    return f"{100 * allowed:g} %" if claim["paper_value"] else f"{allowed:g} {claim['unit']}"
