"""Plans: of what is as fast the simplest is first, and different ideas are told from details."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from meshwright.planner.search.plans import TIE, Plans, simplest_first
from meshwright.prediction.description import num_choices
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.plan.prediction import Prediction

MODEL, CLUSTER = ModelSpec.decoder(8, 64, 4, max_sequence_length=64), Cluster("4xH100")


@dataclass(frozen=True)
class Known:
    """What a search knows of a plan."""

    plan: Plan
    seconds: float
    chance: float = 1.0

    @property
    def step(self) -> Prediction:
        return Prediction(self.seconds, self.seconds, self.seconds, "interpolated")

    def fit_probability(self, most_bytes: int | None = None) -> float:
        return self.chance


def plan(**fix: object) -> Plan:
    return Plan.of(MODEL, CLUSTER, Workload(16, 64), **fix)


PLAIN, PIPELINE = plan(dp=4), plan(pp=4, dp=1)
INVOLVED = plan(pp=4, dp=1, schedule="zb_h1", recompute="full")


def plans(*known: Known) -> Plans:
    return Plans(known)  # type: ignore[arg-type]


def test_the_plainest_plan_has_nothing_to_explain() -> None:
    assert num_choices(PLAIN) == 0 < num_choices(PIPELINE) < num_choices(INVOLVED)
    assert num_choices(plan(dp=4, sharding="zero1", recompute="full")) == 2


@pytest.mark.parametrize(
    ("behind", "chance", "is_first"),
    [(0.5 * TIE, 1.0, True), (2 * TIE, 1.0, False), (0.5 * TIE, 0.5, False)],
    ids=["as fast", "slower", "may not fit"],
)
def test_of_plans_that_are_as_fast_the_simplest_that_fits_as_surely_is_first(
    behind: float, chance: float, is_first: bool
) -> None:
    fast, simple = Known(INVOLVED, 1.0), Known(PLAIN, 1.0 + behind, chance)
    found = simplest_first(plans(fast, Known(PIPELINE, 1.0 + 0.1), simple), 10**9, risk=0.0)
    assert found[0] is (simple if is_first else fast)  # type: ignore[comparison-overlap]
    assert found.num_tied == (2 if is_first else 0) and len(found) == 3


def test_of_a_layout_two_ideas_are_shown_at_their_places() -> None:
    one, same = Known(PIPELINE, 1.0), Known(PIPELINE.changed(microbatch_size=2), 1.1)
    second, third = Known(INVOLVED, 1.2), Known(plan(pp=4, dp=1, sharding="zero1"), 1.3)
    other = Known(PLAIN, 1.4)
    assert plans(one, same, second, third, other).ideas == {1: one, 3: second, 5: other}
