"""What the card claims: steps of zones beside one ring, what routing and remapping add, and what is misses."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.specs.error import UnknownNameError
from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.systems.sequence.zeppelin import step


def test_the_card_names_its_paper() -> None:
    card = system("zeppelin")
    assert "2509.21841" in card.paper and card.is_simulated


def test_bounds_and_hops_are_met() -> None:
    for words in ("uneven tokens", "a hop over"):
        assert all(one["passed"] for one in reproduce("zeppelin", only=words)["claims"])


def test_each_part_makes_steps_faster() -> None:
    gains = [step.speed_up("GitHub", 16, part) for part in step.PARTS]
    assert gains == sorted(gains) and gains[0] == 1.0 and gains[-1] > 1.5
    with pytest.raises(UnknownNameError):
        step.step_seconds("zoned", (5,), 16)
    with pytest.raises(UnknownNameError):
        step.speed_up("Common Crawl", 16)


def test_remapping_pays_where_attention_leaves_tokens_uneven() -> None:
    costs = step.costs_of(16, True)
    one = GroupedBatch((4096, *(64,) * 15), 16, tuple(SequenceGroup((rank,), (rank,)) for rank in range(16)))
    assert step.remapped_seconds(one, costs) < max(finish_seconds(one, costs))
    even = GroupedBatch((4096,) * 16, 16, tuple(SequenceGroup((rank,), (rank,)) for rank in range(16)))
    assert step.remapped_seconds(even, costs) == pytest.approx(max(finish_seconds(even, costs)), rel=1e-9)


@pytest.mark.slow
def test_the_headline_is_told_as_it_is_found() -> None:
    (found,) = reproduce("zeppelin", only="mean speed-up")["claims"]
    assert found["closer_than_null"] and found["our_value"] > 2.0
