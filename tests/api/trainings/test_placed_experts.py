"""From routes to a training: what `place` wrote is read by `train`, whose losses, routes and checkpoints stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.running import small_plan
from tests.executor.checkpoint.stored_case import stored

import meshwright as mw
from meshwright.api.subjects.placing import place_experts
from meshwright.executor.job.pool import Pool
from meshwright.specs.error import SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape, of_devices
from meshwright.specs.routing.routing_file import read_routing
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.recipe import Recipe

EXPERTS = {
    "architecture": "mixtral", "num_experts": 4, "num_experts_per_token": 2, "expert_intermediate_size": 16,
}  # fmt: skip
LAYERS, STEPS = (0, 1, 2, 3), 2
SAME = 1e-10


@pytest.fixture
def plan() -> Plan:
    """Two processes with two experts each, in float64."""
    found = small_plan(pp=1, dp=2, dtype="float64")
    return found.changed(model=found.model.changed(**EXPERTS)).changed(ep=2)


def test_a_placed_training_is_the_same_training(plan: Plan, gloo_pool: Pool, tmp_path: Path) -> None:
    losses, routes, states = [], [], []
    placement = tmp_path / "turns.experts.json"
    for name, given in (("plain", None), ("placed", placement)):
        trace = mw.train(
            plan, iterations=STEPS, pool=gloo_pool, recipe=Recipe(1e-3, clip=0.1), record_routing=tmp_path / f"{name}.npz",
            checkpoints=Checkpoints(tmp_path / name), expert_placement=given,
        )  # fmt: skip
        losses.append(trace.metadata["losses"])
        routes.append(read_routing(tmp_path / f"{name}.npz"))
        states.append(stored(tmp_path / name / f"step-{STEPS}"))
        place_experts(routes[-1], 2, by=["round_robin"]).rows[0].placement.save(placement)
    assert losses[1] == pytest.approx(losses[0], rel=SAME)
    assert np.array_equal(routes[1].experts, routes[0].experts)
    assert states[1].keys() == states[0].keys()
    for name, value in states[0].items():
        assert torch.allclose(states[1][name], value, rtol=SAME, atol=SAME), name


def test_what_is_no_placement_of_the_plan_is_refused_before_it_runs(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "four.experts.json"
    of_devices(np.tile(np.arange(4), (4, 1)), GroupShape(4), LAYERS).save(file)
    with pytest.raises(SpecError, match="on 4 devices"):
        mw.train(plan, iterations=1, expert_placement=file)
    copies = ExpertPlacement(np.tile([0, 1, 2, 3, 0, 1], (4, 1)), 2, LAYERS)
    with pytest.raises(SpecError, match="2 copies"):
        mw.train(plan, iterations=1, expert_placement=copies)
    with pytest.raises(SpecError, match="ep 1"):
        mw.train(plan.changed(ep=1), iterations=1, expert_placement=file)
    with pytest.raises(SpecError, match="no expert placement"):
        mw.train(plan, iterations=1, expert_placement=tmp_path / "none.experts.json")
