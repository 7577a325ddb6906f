"""`reproduce`: recomputes every claim of a system: the paper's number, ours, their ratio, and whether it holds."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from typing import Any

from meshwright.evidence.claim import Claim, Result
from meshwright.evidence.system_card import system
from meshwright.specs.error import MeshwrightError, SpecError

log = logging.getLogger(__name__)
STUDIES = "studies."  # claims that train or sample live in this room, and need torch
OPTIONAL = "torch"


def reproduce(name: str, *, progress: Callable[[str, float], None] | None = None) -> dict[str, Any]:
    """Recompute the claims of a system.

    Returns `name`, `claims` (one mapping each: claim, kind, paper_value, our_value, ratio, unit, tolerance, passed, how)
    and `wall_s`. A claim that cannot be recomputed here has no value, did not pass, and says why in `how`.

    Raises:
        UnknownNameError: there is no such system.
        SpecError: a claim names a function that is not there.
    """
    card = system(name)
    began = time.perf_counter()
    results = []
    for number, claim in enumerate(card.claims):
        if progress is not None:
            progress(claim.claim, number / len(card.claims))
        results.append(recompute(claim, card.module))
    wall_s = time.perf_counter() - began
    return {"name": card.name, "claims": [result.to_dict() for result in results], "wall_s": wall_s}


def recompute(claim: Claim, module: str) -> Result:
    """Run the function that a claim names, and judge what it returns."""
    try:
        value = _function(claim, module)(**claim.arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != OPTIONAL:
            raise
        return claim.judge(None, "not run: it needs torch, which is not installed")
    except SpecError:
        raise
    except MeshwrightError as error:
        log.warning("claim %r could not be recomputed: %s", claim.claim, error)
        return claim.judge(None, f"not run: {error}")
    return claim.judge(float(value))


def _function(claim: Claim, module: str) -> Callable[..., float]:
    """The function behind a claim: of the system's own file, or "studies.NAME:FUNCTION"."""
    place, _, name = claim.by.rpartition(":")
    if place and not place.startswith(STUDIES):
        raise SpecError(f"claim {claim.claim!r} is computed by {claim.by!r}", allowed="studies.NAME:FUNCTION")
    found = importlib.import_module(f"meshwright.{place}" if place else module)
    function: Callable[..., float] | None = getattr(found, name, None)
    if function is None:
        raise SpecError(
            f"claim {claim.claim!r} is computed by {name!r}, which {found.__name__} does not have",
            allowed="a function of that file, or studies.NAME:FUNCTION",
        )
    return function
