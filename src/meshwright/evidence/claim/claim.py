"""Claims: what a paper says, how we recompute it, and how far we may be off. Written as a literal, checked here.

A system's file holds `CLAIMS`, a tuple of mappings that can be read without importing the file:

    {"claim": "speed-up at n={n}, m={m}",     what is claimed, a sentence; {..} are arguments of a case
     "kind": "predicted",                     measured | predicted | identity | fitted on ROWS
     "unit": "x",
     "tolerance": 0.15,                       allowed |ours / paper - 1|, fixed before the code, and
     "reason": "...",                         why that much
     "how": "...",                            how it is recomputed, for people
     "by": "speed_up",                        function of the card, or "study:FUNCTION"
     "cases": (({"n": 4, "m": 32}, 2.709),)}  arguments of it and the paper's value, each case a claim

*measured*: something ran on this machine. *predicted*: simulated from inputs that the claim names. *fitted on ROWS*: so
too, but a constant was chosen on ROWS, which then claim nothing. *identity*: computed by the very formula it states; it
checks the code and is no evidence for the claim.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.specs.error import SpecError

KIND = re.compile(r"measured|predicted|identity|fitted on \S.*")
FIELDS: dict[str, type | tuple[type, ...]] = {
    "claim": str,
    "kind": str,
    "unit": str,
    "tolerance": (int, float),
    "reason": str,
    "how": str,
    "by": str,
    "cases": tuple,
}


@dataclass(frozen=True)
class Claim:
    """One claim with one value of the paper. Raises SpecError on a kind or number that cannot be."""

    claim: str
    kind: str
    paper_value: float
    unit: str
    tolerance: float
    how: str
    reason: str
    by: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not KIND.fullmatch(self.kind):
            raise SpecError(
                f"claim {self.claim!r} is of kind {self.kind!r}",
                allowed="measured, predicted, identity, or fitted on what",
            )
        if not math.isfinite(self.paper_value) or not 0 <= self.tolerance < math.inf:
            raise SpecError(
                f"claim {self.claim!r} has value {self.paper_value!r} and tolerance {self.tolerance!r}",
                allowed="finite numbers, and a tolerance from 0",
            )

    @property
    def is_evidence(self) -> bool:
        """Can it fail for another reason than a mistake of ours? An identity cannot."""
        return self.kind != "identity"

    def judge(self, our_value: float | None, note: str = "") -> ClaimResult:
        """The result of this claim; `note` says why there is no value, or what was assumed."""
        return ClaimResult(self, our_value, f"{self.how}; {note}" if note else self.how)

    def left_out(self, reason: str) -> ClaimResult:
        """The result where nothing ran, because something it needs is not here: neither held nor failed."""
        return ClaimResult(self, None, f"{self.how}; not run: {reason}", reason)


@dataclass(frozen=True)
class ClaimResult:
    """A claim, and what we found; None where it could not be recomputed here. `not_run`: why nothing ran, or empty."""

    claim: Claim
    our_value: float | None
    how: str
    not_run: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's; None without a value, or for a paper's value of zero."""
        if self.our_value is None or self.claim.paper_value == 0:
            return None
        return self.our_value / self.claim.paper_value

    @property
    def passed(self) -> bool:
        """Within the tolerance: relative, or absolute where the paper's value is zero."""
        if self.our_value is None or not math.isfinite(self.our_value):
            return False
        scale = abs(self.claim.paper_value) or 1.0
        return abs(self.our_value - self.claim.paper_value) <= self.claim.tolerance * scale

    def to_dict(self) -> dict[str, Any]:
        """As `meshwright reproduce --json` prints it."""
        claim = self.claim
        return {
            "claim": claim.claim,
            "kind": claim.kind,
            "paper_value": claim.paper_value,
            "our_value": self.our_value,
            "ratio": self.ratio,
            "unit": claim.unit,
            "tolerance": claim.tolerance,
            "passed": self.passed,
            "how": self.how,
            "not_run": self.not_run or None,
        }


def claims_of(literal: Any, where: str) -> tuple[Claim, ...]:
    """The claims of a `CLAIMS` literal, every case one. Raises SpecError naming the file and the entry."""
    if not isinstance(literal, tuple | list):
        raise SpecError(f"{where}: CLAIMS is a {type(literal).__name__}", allowed="a tuple of mappings")
    return tuple(claim for entry in literal for claim in _cases(entry, where))


def _cases(entry: Any, where: str) -> Sequence[Claim]:
    """All claims of one entry."""
    _check_entry(entry, where)
    found = []
    for case in entry["cases"]:
        if not isinstance(case, tuple) or len(case) != 2 or not isinstance(case[0], dict):
            raise SpecError(
                f"{where}: {entry['claim']!r} has the case {case!r}",
                allowed="pairs of arguments and the paper's value",
            )
        arguments, paper_value = case
        try:
            sentence = entry["claim"].format(**arguments)
        except (KeyError, IndexError) as error:
            raise SpecError(
                f"{where}: {entry['claim']!r} names an argument that a case does not give: {error}",
                allowed=", ".join(arguments) or "none",
            ) from error
        texts = {key: entry[key] for key in ("kind", "unit", "how", "reason", "by")}
        found.append(
            Claim(
                claim=sentence,
                paper_value=float(paper_value),
                tolerance=float(entry["tolerance"]),
                arguments=arguments,
                **texts,
            )
        )
    return found


def _check_entry(entry: Any, where: str) -> None:
    """Every field is there and of its type, and no other."""
    if not isinstance(entry, dict):
        raise SpecError(f"{where}: CLAIMS holds {entry!r}", allowed="mappings")
    wrong = [name for name, kind in FIELDS.items() if not isinstance(entry.get(name), kind)]
    wrong += [name for name in entry if name not in FIELDS]
    empty = [name for name in FIELDS if name not in wrong and entry[name] in ("", ())]
    if wrong or empty:
        raise SpecError(
            f"{where}: claim {entry.get('claim')!r} has a wrong or empty {', '.join([*wrong, *empty])}",
            allowed=", ".join(FIELDS),
        )
