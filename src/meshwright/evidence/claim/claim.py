"""Claims: what a paper says, how we recompute it, and how far we may be off. Written as a literal, checked here.

A system's file holds `CLAIMS`, a tuple of mappings that can be read without importing the file:

    {"claim": "speed-up at n={n}, m={m}",     what is claimed, a sentence; {..} are arguments of a case
     "kind": "predicted",                     measured | predicted | identity | fitted on ROWS
     "unit": "x",
     "tolerance": 0.15,                       allowed |ours / paper - 1|, fixed before the code, and
     "reason": "...",                         why that much
     "how": "...",                            how it is recomputed, for people
     "by": "speed_up",                        function of the card, or "study:FUNCTION"
     "source": "figure 3",                    where the paper's value stands: of the paper, or of what else
     "null": {"no effect": 1.0},              what knows nothing of the paper says: a number, or a function as in "by"
     "cases": (({"n": 4, "m": 32}, 2.709),)}  arguments of it and the paper's value, each case a claim

*measured*: something ran on this machine. *predicted*: simulated from inputs that the claim names. *fitted on ROWS*: so
too, but a constant was chosen on ROWS, which then claim nothing. *identity*: computed by the very formula it states; it
checks the code and is no evidence for the claim. A predicted claim has a null, or several, of which the one closest to
the paper counts (evidence/claim/null.py has their names).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from meshwright.evidence.claim.null import NULLS, NullValue, is_closer
from meshwright.specs.error import SpecError
from meshwright.specs.record import converted, record

KIND = re.compile(r"measured|predicted|identity|fitted on \S.*")


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
    source: str = ""
    null: Mapping[str, float | str] = field(default_factory=dict)

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
        for name in self.null:
            if name not in NULLS:
                raise SpecError(f"claim {self.claim!r} has the null {name!r}", allowed=", ".join(NULLS))

    def to_dict(self) -> dict[str, Any]:
        """As `meshwright systems NAME --json` prints it, and what every result begins with."""
        return {
            "claim": self.claim,
            "kind": self.kind,
            "paper_value": self.paper_value,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "reason": self.reason,
            "source": self.source,
        }

    @property
    def is_evidence(self) -> bool:
        """Can it fail for another reason than a mistake of ours? An identity cannot."""
        return self.kind != "identity"

    def judge(self, our_value: float | None, null: NullValue | None = None) -> ClaimResult:
        """The result of this claim with the value that we found, if any, and that of its null."""
        return ClaimResult(self, our_value, self.how, null=null)

    def failed(self, reason: str) -> ClaimResult:
        """The result where what was run stopped: no value, and it does not hold."""
        return ClaimResult(self, None, f"{self.how}; failed: {reason}", failed=reason)

    def left_out(self, reason: str) -> ClaimResult:
        """The result where nothing ran, because something it needs is not here: neither held nor failed."""
        return ClaimResult(self, None, f"{self.how}; not run: {reason}", reason)


@dataclass(frozen=True)
class ClaimResult:
    """A claim, and what we found; None where it could not be recomputed here. `not_run`: why nothing ran, `failed`: why what
    ran stopped; or empty."""

    claim: Claim
    our_value: float | None
    how: str
    not_run: str = ""
    failed: str = ""
    null: NullValue | None = None

    @property
    def is_closer_than_null(self) -> bool | None:
        """Is the prediction evidence? None where there is nothing to compare."""
        if self.our_value is None or self.null is None:
            return None
        return is_closer(self.our_value, self.null.value, self.claim.paper_value)

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
        found = {
            "our_value": self.our_value,
            "ratio": self.ratio,
            "null": self.null.name if self.null else None,
            "null_value": self.null.value if self.null else None,
            "closer_than_null": self.is_closer_than_null,
            "passed": self.passed,
            "how": self.how,
            "not_run": self.not_run or None,
            "failed": self.failed or None,
        }
        return {**self.claim.to_dict(), **found}


class ClaimCase(NamedTuple):
    """Arguments of a claim's function, and the paper's value."""

    arguments: Mapping[str, Any]
    paper_value: float


def claims_of(literal: Any, where: str) -> tuple[Claim, ...]:
    """The claims of a `CLAIMS` literal, every case one. Raises SpecError naming the file and the entry."""
    if not isinstance(literal, tuple | list):
        raise SpecError(f"{where}: CLAIMS is a {type(literal).__name__}", allowed="a tuple of mappings")
    return tuple(claim for entry in literal for claim in _claims_of_entry(entry, where))


def _claims_of_entry(entry: Any, where: str) -> Iterator[Claim]:
    """All claims of one entry."""
    said = dict(converted(Mapping[str, Any], entry, f"{where}: an entry of CLAIMS"))
    place = f"{where}: claim {said.get('claim')!r}"
    cases = converted(tuple[ClaimCase, ...], said.pop("cases", ()), f"{place}: 'cases'")
    empty = [name for name, value in {**said, "cases": cases}.items() if value in ("", ())]
    if empty:
        raise SpecError(f"{place} has an empty {', '.join(empty)}", allowed="words, and a case at least")
    for arguments, paper_value in cases:
        claim = record(Claim, said, place, arguments=arguments, paper_value=paper_value)
        try:
            yield replace(claim, claim=claim.claim.format(**arguments))
        except (KeyError, IndexError) as error:
            raise SpecError(
                f"{place} names an argument that a case does not give: {error}",
                allowed=", ".join(arguments) or "none",
            ) from error
