"""What the card predicts from: no gain without skew, and nothing but skew makes one."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.systems.moe.hecate import card
from meshwright.systems.moe.hecate.mechanism import materialized, owned


def test_even_loads_gain_nothing() -> None:
    """Nothing to even out: 60 experts on 16 devices are less even than 64, messages a little fewer."""
    nodes, owners = card._nodes(16), np.arange(64) // 4
    plain, copies = owned(owners, 16), materialized(np.ones(64), owners, 4, 4, nodes)
    before, behind = card.layer_s(np.ones(64), plain), card.layer_s(np.ones(64), copies)
    assert before / behind == pytest.approx(1.0, abs=0.05)


def test_the_imbalances_that_are_claimed() -> None:
    assert card.plain_imbalance(64, 8) == pytest.approx(1.7, rel=0.1)
    assert card.copied_imbalance(64, 8, 4) <= 1.1
