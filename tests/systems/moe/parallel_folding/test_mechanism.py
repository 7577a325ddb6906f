"""Parallel folding: the models of the table, and a planner that tells what folding gains."""

from __future__ import annotations

import pytest

from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.plan.workload import Workload
from meshwright.systems.moe.parallel_folding.mechanism import best, model_of, planned


@pytest.mark.parametrize(
    ("name", "billions", "active"), [("Mixtral-8x22B", 141, 39), ("8x22B-G8T8", 141, 22.2), ("Qwen2-57B-A14B", 57.4, 14)]
)  # fmt: skip
def test_models_have_the_parameters_of_their_names(name: str, billions: float, active: float) -> None:
    model = model_of(name)
    assert model.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert model.changed(
        num_experts=model.experts.num_experts_per_token
    ).num_parameters / 1e9 == pytest.approx(active, rel=0.05)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Mixtral-8x22B"):
        model_of("nobody")
    with pytest.raises(UnknownNameError, match="folded"):
        best("Mixtral-8x22B", 128, "nobody")


def test_a_folded_group_of_experts_is_no_slower_than_one_that_is_divided_as_attention() -> None:
    fix = {"tp": 4, "pp": 2, "microbatch_size": 1, "recompute": "full"}
    found = planned(load_model("mixtral-8x7b"), Cluster("2x8xH100"), Workload(64, 4096), fix)
    assert found[0].expert_tp == 1 and found[0].ep <= 8 and "faster than" in found.notes[0]
    with pytest.raises(PlanError, match="etp"):
        planned(load_model("mixtral-8x7b"), Cluster("2x8xH100"), Workload(64, 4096), {"etp": 1})


def test_experts_of_one_node_are_faster_than_of_two() -> None:
    assert best("Mixtral-8x22B", 128, "FSDP+EP").step.value < best("Mixtral-8x22B", 128, "FSDP").step.value
