"""`meshwright systems` and `meshwright reproduce`: published systems, and their claims recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import evidence
from meshwright.cli.frame.output import DONE, REFUSED, Output, Result, table_of
from meshwright.evidence.claim.reproduce import reads_data
from meshwright.evidence.claim.system_card import system

NOT_RUN = "not run"
NAMES = {"not_run": NOT_RUN, "failed": "failed"}  # a claim's keys for the reason why there is no value
EXACT = 1e-6  # a tolerance below it is there for rounding only


def list_systems(out: Output) -> Result:
    """List the published systems, whether they are of use to you, and how many claims are recomputed.

    An exhibit is not yet applied to a model, cluster or data of yours by any command; `--explain` has the papers,
    and the commands of the others.
    """
    rows = [card.to_dict() for card in evidence.systems()]
    shown = [
        {
            "name": f"{row['family']}/{row['name']}",
            "use": "exhibit" if row["exhibit"] else "yes",
            "claims": row["num_claims"],
            "summary": row["summary"],
        }
        for row in rows
    ]
    explained = [f"{row['name']}: {row['paper']}; use: {row['use']}" for row in rows]
    return Result({"systems": rows}, [table_of(shown)], explanation=explained)


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
    """Recompute the claims of a published system. Exit 3 where a claim fails, or none could be run.

    A claim that needs torch or data which are not here is not run: it neither holds nor fails, and the reason is said.
    """

    def progress(claim: str, share: float) -> None:
        out.note(f"{100 * share:3.0f} %  {claim}")

    cards = evidence.systems() if name is None else [system(name)]
    results = [
        evidence.reproduce(
            card.name, progress=progress, data=data if name or (data and reads_data(card)) else None
        )
        for card in cards
    ]
    found = {"systems": results} if name is None else results[0]
    found = {key: value for key, value in found.items() if key != "wall_s"}
    claims = [{"system": result["name"], **claim} for result in results for claim in result["claims"]]
    explained = [f"{claim['claim']}: {claim['kind']}; {claim['how']}" for claim in claims]
    rows = [_row(claim) for claim in claims]
    if name is not None:  # one system: its name in every row only takes room from the claims
        rows = [{key: value for key, value in row.items() if key != "system"} for row in rows]
    view = [table_of(rows), *(Text(line, overflow="fold") for line in _reasons(claims))]
    return Result(found, view, explanation=explained, exit_code=_exit_code(claims))


def _exit_code(claims: Sequence[Mapping[str, Any]]) -> int:
    """The honest no where a claim that ran fails, or where none of several could be run: then nothing was reproduced."""
    ran = [claim["passed"] for claim in claims if not claim["not_run"]]
    return REFUSED if not all(ran) or (claims and not ran) else DONE


def _reasons(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Below the table, how many claims have no value, for each reason."""
    found = Counter((NAMES[key], claim[key]) for claim in claims for key in NAMES if claim.get(key))
    return [f"{count} of {len(claims)} {what}: {reason}" for (what, reason), count in found.items()]


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
        "holds": NOT_RUN if claim["not_run"] else "yes" if claim["passed"] else "no",
    }


def _tolerance(claim: Mapping[str, Any]) -> str:
    """Relative, or in the claim's unit where the paper's value is zero."""
    allowed = claim["tolerance"]
    if allowed < EXACT:
        return "exact"
    return f"{100 * allowed:g} %" if claim["paper_value"] else f"{allowed:g} {claim['unit']}"
