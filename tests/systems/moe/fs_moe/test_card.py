"""Claims that need no processes: which hold, and which are misses."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.systems.moe.fs_moe import card as fs_moe


@pytest.mark.slow
def test_claims_stand_as_the_page_tells_them() -> None:
    card = system("fs_moe")
    own = [claim for claim in card.claims if ":" not in claim.by]
    found = [claim.judge(getattr(fs_moe, claim.by)(**claim.arguments)) for claim in own]
    missed = sorted((one.claim.by, one.claim.paper_value) for one in found if not one.passed)
    assert missed == [("num_with_two_degrees", 912.0)] * 2 + [("speed_up_of_models", 3.01)]
    assert max(claim.tolerance for claim in own) <= 0.25


def test_the_headline_is_among_the_claims() -> None:
    values = {claim.paper_value for claim in system("fs_moe").claims}
    assert {1.18, 1.22, 1.19, 3.01} <= values
    assert fs_moe.mean_speed_up("B") > fs_moe.mean_speed_up("A") > 1.0
    assert (
        1.0 < fs_moe.speed_up_of_models("least", "Tutel") < fs_moe.speed_up_of_models("most", "DeepSpeed-MoE")
    )
