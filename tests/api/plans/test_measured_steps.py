"""Plans of a search are ranked by what one's own runs say: where messages are slow, plans that send less come first."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.planner.search.plans import TIE
from meshwright.prediction.own_runs.own_stack import OwnStack
from meshwright.specs import Cluster
from meshwright.specs.cluster.own_run import OwnRun
from meshwright.specs.cluster.profile import Profile

JOB = {"global_batch": 32, "seq": 2048, "fix": {"pp": 1, "recompute": "none", "microbatch_size": 1}}
WHERE = "1x8xH100"


@pytest.fixture(scope="module")
def slow_messages() -> Profile:
    """Of many runs: the more of a step are messages, the longer it takes."""
    runs = [
        OwnRun(f"run {n}", 1.0 + 1.5 * share, 1.0, {"matmul": 1 - share, "exchanges inside, host": share})
        for n, share in enumerate((0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.1, 0.3, 0.5))
    ]
    return Profile("H100", runs=tuple(runs), source="made")


def test_plans_are_corrected_each_by_what_it_has_and_ranked_again(slow_messages: Profile) -> None:
    before = api.plan("llama-3.2-1b", WHERE, **JOB)
    found = api.plan("llama-3.2-1b", WHERE, profile=slow_messages, **JOB)
    known = {each.description: each for each in before}
    stack = OwnStack.of(slow_messages, Cluster(WHERE))
    for each in found:
        assert each.step == stack.of_plan(known[each.description]).step
    ratios = {each.description: each.step.value / known[each.description].step.value for each in found}
    assert max(ratios.values()) > 1.1 * min(ratios.values())
    steps = [each.step.value for each in found]
    assert steps[0] <= (1 + TIE) * min(steps) and steps[1:] == sorted(steps[1:])
    assert found.optimality_gap is None and before.optimality_gap is not None
    assert all(over.plan.step.value < steps[0] for over in found.passed_over)


def test_a_frontier_keeps_what_no_other_beats_as_measured(slow_messages: Profile) -> None:
    found = api.pareto("llama-3.2-1b", WHERE, profile=slow_messages, **JOB)
    assert len(found) > 1
    pairs = [(each.step.value, each.peak_bytes) for each in found]
    assert pairs == sorted(pairs) and [peak for _, peak in pairs] == sorted(
        (p for _, p in pairs), reverse=True
    )
