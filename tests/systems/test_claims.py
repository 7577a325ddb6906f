"""Claims of all systems: predicted ones have a null, sources are said, tolerances are bounded, results are recorded."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.claim import Claim
from meshwright.evidence.claim.recorded import offences, results_of
from meshwright.evidence.claim.reproduce import recompute
from meshwright.evidence.claim.system_card import SystemCard, systems

WIDEST = 0.25  # the largest tolerance that a claim may have
# Of the predicted claims of all systems, the share that is closer to the paper than their nulls. Four fifths are the aim;
# what is behind are rows whose neighbour in the same table says the same, and what the cards show as misses.
LEAST_SHARE = 0.75


def claim_offences(claim: Claim) -> list[str]:
    found = {
        "a predicted claim without a null": claim.kind == "predicted" and not claim.null,
        "no source of the paper's value": not claim.source,
        f"a tolerance above {WIDEST}": claim.tolerance > WIDEST and claim.paper_value != 0,
    }
    return [f"{claim.claim!r}: {offence}" for offence, is_one in found.items() if is_one]


def card_offences(card: SystemCard) -> list[str]:
    found = [offence for claim in card.claims for offence in claim_offences(claim)]
    return found + offences(card.claims, results_of(card.folder))


@pytest.mark.parametrize("card", systems(), ids=lambda card: card.name)
def test_claims_can_fail_and_their_results_are_recorded(card: SystemCard) -> None:
    """Whoever changes a claim records its results:
    `meshwright reproduce NAME -o src/meshwright/systems/FAMILY/NAME/results.json`."""
    found = card_offences(card)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("card", systems(), ids=lambda card: card.name)
def test_what_is_recorded_is_what_is_found(card: SystemCard) -> None:
    """Of what is computed and not measured; runs and trainings differ from one time to the next."""
    recorded = {result["claim"]: result for result in results_of(card.folder)}
    for claim in card.claims:
        if claim.kind == "measured" or recorded[claim.claim]["not_run"]:
            continue
        result = recompute(claim, card.module).to_dict()
        if result["not_run"]:  # it reads data that are not in the package
            continue
        for name in ("our_value", "null_value"):
            found, known = result[name], recorded[claim.claim][name]
            assert found == (known if known is None else pytest.approx(known, rel=1e-3)), claim.claim


def test_most_of_what_is_predicted_is_closer_than_what_knows_nothing() -> None:
    """Of all systems together: some papers' tables are flat, so that their own next row is a strong null."""
    cards = [card.recorded for card in systems()]
    closer = sum(card.num_closer_than_null or 0 for card in cards)
    assert closer >= LEAST_SHARE * sum(card.num_predicted for card in cards)
