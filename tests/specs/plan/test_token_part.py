"""Parts of a microbatch: shares and samples, plan files, words, and what other programs cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.lowering.plans import DENSE, SEQUENCE, plan

from meshwright.interop.megatron.export import export_megatron
from meshwright.planner.space.space import space_of
from meshwright.prediction.description import describe
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.error import MeshwrightError, PlanError
from meshwright.specs.plan.token_part import TokenPart, TokenParts, parts_of_microbatch, shares_of


@pytest.mark.parametrize(
    ("given", "shares"), [(1, (1,)), (3, (1, 1, 1)), ("2", (1, 1)), ("3:1", (3, 1)), ("1:2:1", (1, 2, 1))]
)
def test_shares(given: TokenParts, shares: tuple[int, ...]) -> None:
    assert shares_of(given) == shares
    parts = parts_of_microbatch(given, "samples", 2 * sum(shares), 8)
    assert parts == tuple(TokenPart(2 * share, 8) for share in shares)


@pytest.mark.parametrize(
    ("given", "chunks"),
    [
        (1, [(0, 12)]),
        (2, [(0, 6), (6, 6)]),
        ("3:1", [(0, 9), (9, 3)]),
        ("1:3:2", [(0, 2), (2, 6), (8, 4)]),
    ],
)
def test_chunks_of_sequences_follow_each_other(given: TokenParts, chunks: list[tuple[int, int]]) -> None:
    parts = parts_of_microbatch(given, "sequence", 3, 12)
    assert parts == tuple(TokenPart(3, count, first) for first, count in chunks)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"token_parts": 5}, "sequences of 64 tokens"),
        ({"token_parts": 2, "parts_of": "tokens"}, "parts_of is 'tokens'"),
    ],
)
def test_what_has_no_whole_tokens_is_refused(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(**{"parts_of": "sequence", **choices})


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "", "a", "1:", "0:1", "²", None])
def test_what_is_neither_a_number_nor_shares_is_refused(given: TokenParts) -> None:
    with pytest.raises(PlanError, match="token_parts"):
        shares_of(given)


@pytest.mark.parametrize("given", [2, "3:1"])
def test_a_plan_file_says_them(given: TokenParts, tmp_path: Path) -> None:
    chosen = plan(microbatch_size=4, token_parts=given)
    chosen.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == chosen
    assert f"in parts of {'2+2' if given == 2 else '3+1'}" in describe(chosen)


def test_a_plan_file_says_that_they_are_chunks(tmp_path: Path) -> None:
    chosen = plan(token_parts="3:1", parts_of="sequence")
    chosen.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == chosen
    assert "in chunks of 48+16 tokens" in describe(chosen)


def test_a_search_cuts_sequences_of_any_microbatch_and_leaves_cp_out() -> None:
    fix = {"token_parts": "3:1", "parts_of": "sequence"}
    found = space_of(DENSE, Cluster("2xcpu"), Workload(16, SEQUENCE), fix=fix)
    assert set(found.microbatch_size.tolist()) >= {1, 2} and set(found.cp.tolist()) == {1}
    assert found.plan(0).parts_of == "sequence" and not found.recompute_blocks.any()


def test_a_search_takes_microbatches_that_divide() -> None:
    found = space_of(DENSE, Cluster("2xcpu"), Workload(16, SEQUENCE), fix={"token_parts": "3:1"})
    assert len(found) and not (found.microbatch_size % 4).any()
    assert found.plan(0).token_parts == "3:1" and not found.recompute_blocks.any()


def test_other_programs_run_a_microbatch_as_one() -> None:
    with pytest.raises(MeshwrightError, match="token_parts = 2"):
        export_megatron(plan(microbatch_size=4, token_parts=2), Cluster("1xcpu"))
