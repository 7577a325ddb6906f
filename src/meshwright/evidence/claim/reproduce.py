"""`reproduce`: recomputes every claim of a system: the paper's number, ours, their ratio, and whether it holds."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright import catalog as _finder  # noqa: F401 - plans of claims name what fills a slot
from meshwright.evidence.claim.claim import Claim, ClaimResult
from meshwright.evidence.claim.kept import KeptValues
from meshwright.evidence.claim.null import NullValue, strongest
from meshwright.evidence.claim.system_card import SystemCard, system
from meshwright.specs.error import MeshwrightError, MissingDataError, SpecError

log = logging.getLogger(__name__)
CARD = "card"  # the file of a system whose functions a claim names without more
OPTIONAL = "torch"
DATA = (
    "data"  # the parameter by which a claim's function is told the folder of data that is not in the package
)


def reproduce(
    name: str,
    *,
    data: str | os.PathLike[str] | None = None,
    progress: Callable[[str, float], None] | None = None,
    only: str | None = None,
    again: bool = True,
    done: Callable[[ClaimResult], None] | None = None,
) -> dict[str, Any]:
    """Recompute the claims of a system.

    Args:
        name: of the system.
        data: folder of what its claims read and the package does not have (the system's card says what).
        progress: is told each claim, and the share of claims before it.
        only: words of the claims that are wanted; None: all.
        again: also what a run that was cut short has found already; else that is taken, and kept in the user's cache until
            a run comes to its end.
        done: is told each result as soon as it is there.

    Returns `name`, `claims` (one mapping each: claim, kind, paper_value, source, our_value, ratio, null, null_value,
    closer_than_null, unit, tolerance, reason, passed, how, not_run, failed) and `wall_s`. A claim without a value did not
    pass, and says why in `how`. Where nothing ran, as torch or data are not here, `not_run` has the reason; `failed` has it
    for what stopped as it ran. Otherwise they are None.

    Raises:
        UnknownNameError: there is no such system.
        SpecError: no claim of it has these words, a claim names a function that is not there, there is no such folder, or no
            claim reads data.
    """
    card = system(name)
    folder = None if data is None else _folder(data)
    if folder is not None and not reads_data(card):
        raise SpecError(f"{card.name} is given data, and none of its claims reads any", next="leave it out")
    began = time.perf_counter()
    claims = chosen_claims(card, only)
    kept = KeptValues(None) if again or only is not None else KeptValues.of(card.name, folder)
    results = []
    for number, claim in enumerate(claims):
        if progress is not None:
            progress(claim.claim, number / len(claims))
        value = kept.value(claim)
        if value is None:
            results.append(recompute(claim, card.module, folder))
        else:
            results.append(claim.judge(value, null_of(claim, card.module, folder)))
        kept.add(results[-1])
        if done is not None:
            done(results[-1])
    kept.forget()
    wall_s = time.perf_counter() - began
    return {"name": card.name, "claims": [result.to_dict() for result in results], "wall_s": wall_s}


def chosen_claims(card: SystemCard, only: str | None) -> tuple[Claim, ...]:
    """Claims whose sentence has these words, whatever their case. Raises SpecError where there is none."""
    if only is None:
        return card.claims
    found = tuple(claim for claim in card.claims if only.casefold() in claim.claim.casefold())
    if not found:
        raise SpecError(
            f"no claim of {card.name} has the words {only!r}",
            allowed="words of a claim's sentence, whatever their case",
            next=f"`meshwright systems {card.name}` lists them",
        )
    return found


def reads_data(card: SystemCard) -> bool:
    """Does a claim of it read data that the package does not have? False where that needs torch, and it is missing."""
    try:
        functions = [_function(claim, card.module) for claim in card.claims]
    except ModuleNotFoundError as error:
        _check_optional(error)
        return False
    return any(DATA in inspect.signature(function).parameters for function in functions)


def recompute(claim: Claim, module: str, data: Path | None = None) -> ClaimResult:
    """Run the function that a claim names, and judge what it returns."""
    try:
        function = _function(claim, module)
        value = _called(function, claim, data)
        null = null_of(claim, module, data)
    except ModuleNotFoundError as error:
        _check_optional(error)
        return claim.left_out("it needs torch, which is not installed")
    except SpecError:
        raise
    except MissingDataError as error:
        return claim.left_out(str(error))
    except MeshwrightError as error:
        log.info("claim %r could not be recomputed: %s", claim.claim, error)
        return claim.failed(str(error))
    return claim.judge(float(value), null)


def null_of(claim: Claim, module: str, data: Path | None = None) -> NullValue | None:
    """What the strongest of a claim's null models says. Raises SpecError where one names a function that is not there."""
    values = []
    for name, said in claim.null.items():
        value = _called(_function(claim, module, said), claim, data) if isinstance(said, str) else said
        values.append(NullValue(name, float(value)))
    return strongest(values, claim.paper_value)


def _called(function: Callable[..., float], claim: Claim, data: Path | None) -> float:
    """Of the claim's arguments, and of the folder of data where it takes one."""
    is_told = data is not None and DATA in inspect.signature(function).parameters
    return function(**claim.arguments, **({DATA: data} if is_told else {}))


def _folder(data: str | os.PathLike[str]) -> Path:
    path = Path(data)
    if not path.is_dir():
        raise SpecError(
            f"data {path}: there is no such folder", allowed="a folder with the data of the claims"
        )
    return path


def _check_optional(error: ModuleNotFoundError) -> None:
    """Raise again what is missing for another reason than that torch is not installed."""
    if (error.name or "").partition(".")[0] != OPTIONAL:
        raise error


def _function(claim: Claim, module: str, by: str | None = None) -> Callable[..., float]:
    """The function behind a claim, or behind a null of it (`by`): FUNCTION of the system's card, or "FILE:FUNCTION" of
    another file of its folder."""
    by = by or claim.by
    place, _, name = by.rpartition(":")
    where = f"{module}.{place or CARD}"
    if importlib.util.find_spec(where) is None:
        raise SpecError(
            f"claim {claim.claim!r} is computed by {by!r}",
            allowed="FUNCTION, or FILE:FUNCTION of its folder",
        )
    found = importlib.import_module(where)
    function: Callable[..., float] | None = getattr(found, name, None)
    if function is None:
        raise SpecError(
            f"claim {claim.claim!r} is computed by {name!r}, which {found.__name__} does not have",
            allowed="a function of that file, or FILE:FUNCTION of its folder",
        )
    return function
