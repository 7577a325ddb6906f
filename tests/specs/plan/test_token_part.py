"""Parts of a microbatch: shares and samples, plan files, words, and what other programs cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lowering.plans import DENSE, SEQUENCE, plan

from meshwright.interop.megatron.export import export_megatron
from meshwright.planner.space.space import space_of
from meshwright.prediction.description import describe
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.error import MeshwrightError, PlanError
from meshwright.specs.plan.token_part import TokenParts, samples_of_parts, shares_of


@pytest.mark.parametrize(
    ("given", "shares"), [(1, (1,)), (3, (1, 1, 1)), ("2", (1, 1)), ("3:1", (3, 1)), ("1:2:1", (1, 2, 1))]
)
def test_shares(given: TokenParts, shares: tuple[int, ...]) -> None:
    assert shares_of(given) == shares
    assert samples_of_parts(given, 2 * sum(shares)) == tuple(2 * share for share in shares)


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


def test_a_search_takes_microbatches_that_divide() -> None:
    found = space_of(DENSE, Cluster("2xcpu"), Workload(16, SEQUENCE), fix={"token_parts": "3:1"})
    assert len(found) and not (found.microbatch_size % 4).any()
    assert found.plan(0).token_parts == "3:1" and not found.recompute_blocks.any()


def test_other_programs_run_a_microbatch_as_one() -> None:
    with pytest.raises(MeshwrightError, match="token_parts = 2"):
        export_megatron(plan(microbatch_size=4, token_parts=2), Cluster("1xcpu"))
