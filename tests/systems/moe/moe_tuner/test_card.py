"""MoETuner's card: its commands work on a plan and a trace of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import runner, small_plan

from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing

EXPERTS = {
    "architecture": "mixtral", "num_experts": 8, "num_experts_per_token": 1, "expert_intermediate_size": 64,
}  # fmt: skip


def test_a_plan_is_priced_with_placed_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = runner(capsys)
    plan = small_plan(pp=1, dp=2)
    plan = plan.changed(model=plan.model.changed(**EXPERTS), ep=2)
    paths = [tmp_path / name for name in ("plan.toml", "routes.npz", "experts.experts.json")]
    plan.save(paths[0])
    save_routing(markov_trace(1_000, 4, 8, 0.05, seed=5), paths[1])
    run("place", paths[1], "--devices", 2, "--by", "moe_tuner(cluster_s=1)", "-o", paths[2])
    priced = [
        run("simulate", paths[0], "--json", *more).data["step"]["value"]
        for more in ([], ["--routing", paths[1]], ["--routing", paths[1], "--expert-placement", paths[2]])
    ]
    assert priced[0] < priced[2] < priced[1]
    refused = run("simulate", paths[0], "--expert-placement", paths[2])
    assert refused.code == 2 and "without --routing" in refused.stderr
