"""`meshwright systems` and `meshwright reproduce`: published systems, and their claims recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import api, evidence  # noqa: F401  claims ask plans for what their verbs know
from meshwright.cli.frame.output import DONE, INTERRUPTED, REFUSED, NarrowingTable, Output, Result, table_of
from meshwright.evidence.claim.claim import ClaimResult
from meshwright.evidence.claim.recorded import results_of
from meshwright.evidence.claim.reproduce import reads_data
from meshwright.evidence.claim.system_card import SystemCard, system
from meshwright.specs.error import SpecError

NOT_RUN = "not run"
NAMES = {"not_run": NOT_RUN, "failed": "failed"}  # a claim's keys for the reason why there is no value
LEAST_SUMMARY = 28  # characters of a system's sentence in the list
MORE = "`meshwright systems NAME` has a system's idea, its command, and every claim"
EXACT = 1e-6  # a tolerance below it is there for rounding only


def list_systems(
    out: Output,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One system: its card and its claims.")
    ] = None,
) -> Result:
    """List the published systems, a line each: of use to you, how their claims hold; or show one's card.

    An exhibit (use: no) is not yet applied to a model, cluster or data of yours. `closer`: of the predicted
    claims, those that beat what knows nothing of the paper, where the terminal is wide enough; `fail`: of all;
    `headline`: of those of the abstract, how many fail. `--explain` has papers and commands.
    """
    if name is not None:
        return _card(system(name))
    rows = [card.to_dict() for card in evidence.systems()]
    shown = [
        {
            "name": row["name"],
            "use": "yes" if row["usable"] else "no",
            "closer": _count(row["num_closer_than_null"], row["num_predicted"]),
            "fail": _count(row["num_failed"], row["num_claims"]),
            "headline": _count(row["num_headlines_failed"], row["num_headlines"]),
            "summary": row["summary"],
        }
        for row in rows
    ]
    explained = [f"{row['family']}/{row['name']}: {row['paper']}; use: {row['use']}" for row in rows]
    if all(row["usable"] for row in rows):  # the column says nothing
        shown = [{key: value for key, value in row.items() if key != "use"} for row in shown]
    table = NarrowingTable(shown, "summary", ("closer", "headline"), LEAST_SUMMARY, is_one_line=True)
    return Result({"systems": rows}, [table, Text(MORE)], explanation=explained)


def _count(recorded: int | None, total: int) -> str:
    """Of a system's claims as last recorded; a dash where nothing is."""
    return f"{'-' if recorded is None else recorded}/{total}"


def _card(card: SystemCard) -> Result:
    """What a card says, and its claims with the reasons for their tolerances."""
    claims = [claim.to_dict() for claim in card.claims]
    told = {"System": f"{card.family}/{card.name}", **card.labels, "Results": _results(card)}
    labels = [Text.assemble((f"{name}: ", "bold"), text, overflow="fold") for name, text in told.items()]
    known = (
        {} if card.recorded.num_failed is None else {each["claim"]: each for each in results_of(card.folder)}
    )
    rows = [_claim_row(claim, known.get(claim["claim"], {})) for claim in claims]
    reasons = Counter(claim.reason for claim in card.claims)
    explained = [f"{reason} ({count} of {len(claims)} claims)" for reason, count in reasons.items()]
    data = {**card.to_dict(), "labels": dict(card.labels), "claims": claims}
    return Result(data, [Text(card.summary), *labels, table_of(rows)], explanation=explained)


def _claim_row(claim: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, str]:
    """A claim, and what was last recorded of it."""
    ours = recorded.get("our_value")
    holds = "yes" if recorded.get("passed") else "no" if recorded and not recorded["not_run"] else "-"
    return {
        "claim": claim["claim"],
        "kind": claim["kind"],
        "paper": f"{claim['paper_value']:.5g}",
        "ours": "-" if ours is None else f"{ours:.5g}",
        "unit": claim["unit"],
        "tolerance": _tolerance(claim),
        "holds": holds,
    }


def _results(card: SystemCard) -> str:
    """How a card's claims held when they were last recorded."""
    recorded, num_claims = card.recorded, len(card.claims)
    if recorded.num_failed is None:
        return f"none is recorded of its {num_claims} claims as they stand"
    headlines = f"{recorded.num_headlines_failed} of the {recorded.num_headlines} of its abstract among them"
    return (
        f"{recorded.num_failed} of {num_claims} claims fail{', ' + headlines if recorded.num_headlines else ''}; "
        f"{recorded.num_closer_than_null} of the {recorded.num_predicted} predicted ones are closer than what knows nothing "
        "of the paper"
    )


def reproduce(
    out: Output,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A system; without one, all of them.")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="WORDS", help="Claims with these words in their sentence.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also what a run that was cut short has found already.")
    ] = False,
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
    Ctrl-C shows what was found until then, which the next run goes on from.
    """
    cards = evidence.systems() if name is None else [system(name)]
    if only is not None and name is None:
        cards = [
            card for card in cards if any(only.casefold() in each.claim.casefold() for each in card.claims)
        ]
        if not cards:
            raise SpecError(
                f"no claim of any system has the words {only!r}",
                next="`meshwright systems NAME` lists claims",
            )
    run = Recomputation(out, only, again)
    try:
        for card in cards:
            run.recompute(card.name, data if name or (data and reads_data(card)) else None)
    except KeyboardInterrupt:
        if not any(run.found.values()):
            raise
        out.note("interrupted: what was found is below, and the next run goes on from there")
        run.is_cut_short = True
    return run.result(is_one=name is not None)


@dataclass
class Recomputation:
    """Systems whose claims are recomputed one by one, each told as it is there."""

    out: Output
    only: str | None
    again: bool
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    is_cut_short: bool = False

    def recompute(self, name: str, data: Path | None) -> None:
        """The claims of one system."""
        own = self.found[name] = []

        def note(result: ClaimResult) -> None:
            own.append(result.to_dict())
            self.out.note(f"       {_verdict(own[-1])}")

        def progress(claim: str, share: float) -> None:
            self.out.note(f"{100 * share:3.0f} %  {claim}")

        answer = evidence.reproduce(
            name, progress=progress, data=data, only=self.only, again=self.again, done=note
        )
        self.found[name] = answer["claims"]

    def result(self, is_one: bool) -> Result:
        """The table of all that was found."""
        systems = [{"name": name, "claims": claims} for name, claims in self.found.items()]
        claims = [{"system": name, **claim} for name, own in self.found.items() for claim in own]
        explained = [
            f"{claim['claim']}: {claim['kind']}; {claim['how']}; tolerance: {claim.get('reason', '')}; "
            f"the paper's value: {claim.get('source', '')}"
            for claim in claims
        ]
        rows = [_row(claim) for claim in claims]
        if is_one:  # one system: its name in every row only takes room from the claims
            rows = [{key: value for key, value in row.items() if key != "system"} for row in rows]
        view = [table_of(rows), *(Text(line, overflow="fold") for line in _reasons(claims))]
        code = INTERRUPTED if self.is_cut_short else _exit_code(claims)
        data = systems[0] if is_one else {"systems": systems}
        return Result(data, view, explanation=explained, exit_code=code)


def _verdict(claim: Mapping[str, Any]) -> str:
    """One line of a claim that was just recomputed."""
    row = _row({"system": "", **claim})
    null = f", {claim['null']} {row['null']}" if claim.get("null") else ""
    return (
        f"{row['holds']}: ours {row['ours']}, paper {row['paper']} {row['unit']}, ratio {row['ratio']}{null}"
    )


def _exit_code(claims: Sequence[Mapping[str, Any]]) -> int:
    """The honest no where a claim that ran fails, or where none of several could be run: then nothing was reproduced."""
    ran = [claim["passed"] for claim in claims if not claim["not_run"]]
    return REFUSED if not all(ran) or (claims and not ran) else DONE


def _reasons(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Below the table, how many claims have no value, for each reason."""
    found = Counter((NAMES[key], claim[key]) for claim in claims for key in NAMES if claim.get(key))
    return [f"{count} of {len(claims)} {what}: {reason}" for (what, reason), count in found.items()]


def _row(claim: dict[str, Any]) -> dict[str, Any]:
    ours, ratio, null = claim["our_value"], claim["ratio"], claim.get("null_value")
    return {
        "system": claim["system"],
        "claim": claim["claim"],
        "kind": claim["kind"],
        "paper": f"{claim['paper_value']:.5g}",
        "ours": "-" if ours is None else f"{ours:.5g}",
        "null": "-" if null is None else f"{null:.5g}",
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
