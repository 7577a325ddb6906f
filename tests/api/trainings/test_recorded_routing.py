"""A training writes where its tokens went, and says beforehand what it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import small_plan

import meshwright as mw
from meshwright.executor.job.pool import Pool
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.routing.routing_file import read_routing

EXPERTS = {
    "architecture": "mixtral", "num_experts": 4, "num_experts_per_token": 1, "expert_intermediate_size": 16,
}  # fmt: skip


def test_a_training_writes_its_routing(gloo_pool: Pool, tmp_path: Path) -> None:
    plan = small_plan()
    plan = plan.changed(model=plan.model.changed(**EXPERTS))
    path = tmp_path / "routes.jsonl"
    mw.train(plan, iterations=3, pool=gloo_pool, record_routing=path, routing_steps=2)
    found = read_routing(path)
    assert found.steps == (1, 2) and found.layers == (0, 1, 2, 3)
    assert found.num_tokens == 2 * plan.workload.tokens_per_step
    mw.train(plan, iterations=3, pool=gloo_pool, record_routing=path, routing_every=2)
    assert read_routing(path).steps == (0, 2)


def test_what_cannot_be_recorded_is_refused_before_it_runs(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="ends in .npz"):
        mw.train(small_plan(), iterations=1, record_routing=tmp_path / "routes.txt")
    with pytest.raises(SpecError, match="no folder"):
        mw.train(small_plan(), iterations=1, record_routing=tmp_path / "none" / "routes.npz")
    with pytest.raises(ExecutionError, match="no experts"):
        mw.train(small_plan(), iterations=1, record_routing=tmp_path / "routes.npz")
