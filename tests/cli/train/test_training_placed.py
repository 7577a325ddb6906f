"""`train --expert-placement`: routes are recorded, experts placed by them, and the next training has them there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import Runner, small_plan

from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing

EXPERTS = {
    "architecture": "mixtral", "num_experts": 4, "num_experts_per_token": 1, "expert_intermediate_size": 16,
}  # fmt: skip


@pytest.mark.usefixtures("shared_pool")
@pytest.mark.parametrize("by", ["moe_tuner", "hecate"])
def test_what_place_wrote_is_trained(by: str, run: Runner, tmp_path: Path) -> None:
    plan = small_plan(pp=1, dp=2)
    plan.changed(model=plan.model.changed(**EXPERTS)).changed(ep=2).save(tmp_path / "plan.toml")
    routes, placement = tmp_path / "routes.npz", tmp_path / "placed.experts.json"
    job = ("train", tmp_path / "plan.toml", "--iterations", 2, "--json")
    plain = run(*job, "--record-routing", routes)
    assert plain.code == 0, plain.stderr
    place = ("place", routes, "--by", by, "-o", placement, "--devices")
    assert run(*place, 2).code == 0
    placed = run(*job, "--expert-placement", placement)
    assert placed.code == 0, placed.stderr
    assert placed.data["losses"] == pytest.approx(plain.data["losses"], rel=1e-5)
    assert run(*place, 4).code == 0
    refused = run(*job, "--expert-placement", placement)
    assert refused.code == 2 and "on 2 devices (ep)" in refused.stderr and "Traceback" not in refused.stderr


def test_copies_are_priced_and_not_trained(run: Runner, tmp_path: Path) -> None:
    plan, placement, routes = (
        small_plan(pp=1, dp=2),
        tmp_path / "placed.experts.json",
        tmp_path / "routes.npz",
    )
    path = tmp_path / "plan.toml"
    plan.changed(model=plan.model.changed(**EXPERTS)).changed(ep=2).save(path)
    save_routing(markov_trace(200, plan.model.num_layers, 4, 0.3, seed=0), routes)
    assert run("place", routes, "--devices", 2, "--by", "hecate(overlap=1)", "-o", placement).code == 0
    assert run("simulate", path, "--routing", routes, "--expert-placement", placement).code == 0
    refused = run("train", path, "--iterations", 1, "--expert-placement", placement)
    assert refused.code == 2 and "without copies" in refused.stderr and "Traceback" not in refused.stderr
