"""Results of a system's claims as last recorded: `results.json` of its folder, which `reproduce NAME -o` wrote.

`systems` shows what holds without recomputing it, which takes minutes. A record whose claims are not the card's is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.evidence.claim.claim import Claim
from meshwright.specs.data_text import json_of

FILE = "results.json"
OF_CARD = ("claim", "kind", "paper_value", "tolerance")  # by which a result is known to be of a claim


@dataclass(frozen=True)
class Recorded:
    """Counts over a system's results. `num_predicted`: claims of that kind; `num_headlines`: those whose source is the
    paper's abstract, of which `num_headlines_failed` miss. None where nothing is recorded."""

    num_predicted: int
    num_closer_than_null: int | None
    num_failed: int | None
    num_headlines: int = 0
    num_headlines_failed: int | None = None

    @staticmethod
    def of(folder: Path, claims: Sequence[Claim]) -> Recorded:
        """What is recorded of a system's claims."""
        num_predicted = sum(claim.kind == "predicted" for claim in claims)
        num_headlines, results = sum(map(is_headline, (claim.source for claim in claims))), results_of(folder)
        if offences(claims, results):
            return Recorded(num_predicted, None, None, num_headlines)
        closer = sum(result["kind"] == "predicted" and bool(result["closer_than_null"]) for result in results)
        failed = [result for result in results if not result["passed"] and not result["not_run"]]
        missed = sum(is_headline(result["source"]) for result in failed)
        return Recorded(num_predicted, closer, len(failed), num_headlines, missed)


def is_headline(source: str) -> bool:
    """Is a claim one of the paper's abstract, by what its source says?"""
    return "abstract" in source.casefold()


def results_of(folder: Path) -> Sequence[Mapping[str, Any]]:
    """What is recorded in a system's folder; none where nothing is."""
    path = folder / FILE
    if not path.is_file():
        return ()
    results: Sequence[Mapping[str, Any]] = json_of(path.read_text(encoding="utf-8"))["claims"]
    return results


def offences(claims: Sequence[Claim], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """How a record is not one of these claims."""
    told = [claim.to_dict() for claim in claims]
    wanted, found = ([tuple(each[name] for name in OF_CARD) for each in rows] for rows in (told, results))
    return [f"not recorded: {each}" for each in wanted if each not in found] + [
        f"recorded, and not claimed: {each}" for each in found if each not in wanted
    ]
