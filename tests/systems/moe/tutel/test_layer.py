"""The paper's layer: all-to-alls in two levels, and what each part gains."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.systems.moe.tutel import card
from meshwright.systems.moe.tutel.layer import PARTS, gain, linear_s, two_level_s

SIZE = 128 * 2**20


def test_two_levels_pay_on_many_devices_only() -> None:
    assert linear_s(16, SIZE) < two_level_s(16, SIZE)
    assert two_level_s(2048, SIZE) < linear_s(2048, SIZE)


@pytest.mark.parametrize("devices", [16, 2048])
def test_parts_multiply_to_the_whole(devices: int) -> None:
    product = 1.0
    for part in PARTS:
        product *= gain(devices, part)
        assert gain(devices, part) >= 1.0 - 1e-12
    assert product == pytest.approx(gain(devices, "all"))


def test_claims_stand_as_the_page_tells_them() -> None:
    own = [claim for claim in system("tutel").claims if ":" not in claim.by]
    found = [claim.judge(getattr(card, claim.by)(**claim.arguments)) for claim in own]
    missed = {one.claim.paper_value for one in found if not one.passed}
    assert missed == {4.96, 3.11, 5.75, 4.25, 1.24} and max(claim.tolerance for claim in own) <= 0.25
