"""What the card claims from, and its `Use:` on a folder of a mixture of experts that it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.running import Runner, runner
from tests.executor.serving.paged_case import FAMILIES, their_model

import meshwright as mw
from meshwright.serving.request.request import Request
from meshwright.specs.error import PlanError
from meshwright.systems.moe.expert_flow import card


def test_switch_base_has_the_numbers_of_its_paper() -> None:
    """7.4 billion with 128 experts a layer (Fedus et al. 2021, table 9); nothing is saved with a place for each."""
    assert card.saved_share(12 * 128) == 0.0
    expert = 2 * 768 * 3072
    saved_per_place = (card.saved_share(1) - card.saved_share(2)) / expert
    assert 1 / saved_per_place == pytest.approx(7.4e9, rel=0.01)


def test_a_drawn_routing_repeats_and_has_different_experts() -> None:
    first, again = (card.markov_routing(20, 3, 8, 2, 0.3, 1) for _ in range(2))
    assert (first == again).all() and first.shape == (20, 3, 2)
    assert (first[..., 0] != first[..., 1]).all() and first.min() >= 0 and first.max() < 8


def test_beladys_rule_by_hand() -> None:
    """a b c a b with two places: c displaces b, so a is hit, b is not."""
    uses = [(0, number) for number in (0, 1, 2, 0, 1)]
    assert card._belady_hits(uses, 2) == 1 and card._belady_hits(uses, 3) == 2
    assert card.oracle_over_belady() == 1.0


def test_a_plan_says_why_it_has_no_price() -> None:
    load = [Request("a", 20, 3, num_output_tokens=3)]
    with pytest.raises(PlanError, match="no routing"):
        mw.plan_load("mixtral-8x7b", "4xH100", load, fix={"tp": 4, "replicas": 1, "weights": "expert_flow"})


@pytest.mark.parametrize("order", ["learned", pytest.param("recent", marks=pytest.mark.slow)])
def test_a_folder_of_ones_own_says_the_same_with_few_experts(
    order: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    their_model({**FAMILIES["qwen3_moe"], "vocab_size": 256}, tmp_path / "own")
    run: Runner = runner(capsys)
    asked = (
        "generate",
        tmp_path / "own",
        "--prompt",
        "Once",
        "--max-tokens",
        8,
        "--engine",
        "torch",
        "--dtype",
        "float32",
    )
    small = ("--blocks", 32, "--threads", 1, "--device", "cpu", "--json")
    found = [run(*asked, *small), run(*asked, "--weights", f"expert_flow(slots=5, order={order})", *small)]
    assert [each.code for each in found] == [0, 0], found[1].stderr
    assert found[0].data["outputs"] == found[1].data["outputs"]
    refused = run(*asked, "--weights", "expert_flow", "--tp", 2, *small)
    assert refused.code == 2 and "one process" in refused.stderr
