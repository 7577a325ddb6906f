"""Steps of drawn batches in groups: no algorithm is below the bound, the static degree is what a whole sequence needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.sequence.grouped_search import grouped_plans
from meshwright.prediction.predicted import predict
from meshwright.prediction.sequence.grouped_distribution import GroupedDistribution, grouped_distribution
from meshwright.specs import Cluster, Plan, PlanError, Workload
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError
from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.sequence.lower_bound import lower_bound_s
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.static_groups import StaticGroups

CLUSTER, CONTEXT = Cluster("8xH100"), 65536
LENGTHS = LengthDistribution.of([600, 900, 1500, 2500, 4000, 9000, 30000, 90000], "drawn")
COSTS = SequenceCosts(1e-9, 1e-6, 1e-4, 1.0, 0.0, 1000.0, exchange_bytes=8.0, rates={2: 4e6, 4: 2e6, 8: 1e6})
NEAR = (
    0.25  # a formula of groups beside the program of them: what it misses prices by, and what groups wait for
)


@pytest.fixture(scope="module")
def found() -> GroupedDistribution:
    model = load_model("llama-3.2-1b")
    plan = Plan.of(
        model, CLUSTER, Workload(32, CONTEXT), dp=8, microbatch_size=1, dtype="bfloat16", recompute="full"
    )
    return grouped_distribution(
        plan, CLUSTER, {"adapts": StaticGroups(adapts=True)}, LENGTHS, num_batches=4, seed=3
    )


def test_steps_are_means_of_drawn_batches_above_a_bound(found: GroupedDistribution) -> None:
    assert len(found.batches) == 4 and all(len(batch) == 32 for batch in found.batches)
    assert max(max(batch) for batch in found.batches) <= CONTEXT
    for one in found.steps.values():
        assert one.mean_s == pytest.approx(np.mean(one.seconds))
        assert one.error_s == pytest.approx(np.std(one.seconds, ddof=1) / 2)
        assert all(step_s >= bound_s for step_s, bound_s in zip(one.seconds, found.bounds_s, strict=True))
    name, best = found.best
    assert best.mean_s <= found.static.mean_s and name in found.steps
    assert next(iter(found.steps)).startswith("static(degree=")


def test_the_formula_is_near_the_program_of_its_groups(found: GroupedDistribution) -> None:
    groups = StaticGroups(adapts=True)(found.batches[0], 8, found.costs)
    step_s = predict(found.plan, CLUSTER, groups=groups).step.value
    assert found.steps["adapts"].seconds[0] == pytest.approx(step_s, rel=NEAR)


@given(st.lists(st.integers(1, 3999), min_size=1, max_size=40), st.sampled_from([0, 4, 8]))
def test_no_grouping_ends_before_the_bound(lengths: list[int], degree: int) -> None:
    batch = StaticGroups(degree)(lengths, 8, COSTS)
    assert max(finish_seconds(batch, COSTS)) >= lower_bound_s(lengths, 8, COSTS) * (1 - 1e-12)


def test_a_search_gives_the_plan_that_is_fastest_and_says_what_fits_nowhere() -> None:
    model, work = load_model("llama-3.2-1b"), Workload(32, CONTEXT, LENGTHS.kept().pairs)
    fix = {"dtype": "bfloat16", "recompute": "full", "sharding": "none"}
    plans = grouped_plans(
        model, CLUSTER, work, {"adapts": StaticGroups(adapts=True)}, LENGTHS, fix, num_batches=2
    )
    steps = [each.best[1].mean_s for each in plans]
    assert steps == sorted(steps) and len(plans) > 1
    assert {each.plan.tp for each in plans} >= {1, 2}
    with pytest.raises(PlanError, match="cp=2"):
        grouped_plans(model, CLUSTER, work, {}, LENGTHS, {"cp": 2})
    with pytest.raises(OutOfMemoryError, match="no plan has groups"):
        grouped_plans(model, CLUSTER, work, {}, LENGTHS, {**fix, "tp": 1}, memory_bytes=10e9)
