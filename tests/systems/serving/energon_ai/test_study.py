"""What runs: packed as padded, pooled as resident within its budget; stages ahead of each other, and one order."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.systems.serving.energon_ai import study

SLOW = {
    "steps_ahead",
    "num_orders",
    "saved_products",
}  # processes, and torch's counter, which takes long to load
CLAIMS = [claim for claim in system("energon_ai").claims if claim.by.startswith("study:")]


@pytest.mark.parametrize(
    "claim",
    [pytest.param(one, marks=pytest.mark.slow if one.by.partition(":")[2] in SLOW else ()) for one in CLAIMS],
    ids=lambda claim: claim.by,
)
def test_what_is_claimed_of_this_machine_holds(claim) -> None:  # type: ignore[no-untyped-def]
    found = getattr(study, claim.by.partition(":")[2])(**claim.arguments)
    assert claim.judge(found).passed, found


@pytest.mark.parametrize(("every", "ahead"), [(1, 1), (1, 3), (2, 2), (4, 1)])
def test_no_more_is_ever_here_than_the_pool_says(every: int, ahead: int) -> None:
    assert study.peak_over_budget(every, ahead) <= 1.0
