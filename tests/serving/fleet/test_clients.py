"""Clients who wait, on several replicas: never more under way than there are, and no leap over an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.serving.fleet.test_fleet import ONE, records
from tests.serving.simulated_case import load, program, table

from meshwright.serving.fleet.fleet import Served, serve
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import StepModel
from meshwright.specs.error import PlanError

CLIENTS = 12
PLANS = {
    "one": ONE,
    "two": replace(ONE, replicas=2),
    "in turns": replace(ONE, replicas=3, router="round_robin"),
    "stages": replace(ONE, replicas=2, layout=ReplicaLayout(1, 2)),
}


class SingleSteps:
    """A table that never leaps."""

    def __init__(self, steps: StepModel) -> None:
        self._steps = steps

    def step(self, batch: BatchShape) -> StepTime:
        """As the table."""
        return self._steps.step(batch)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """One."""
        return self._steps.run(num_decodes, num_context, 1, span_s)


def served(plan: ServingPlan, leaps: bool = True, num: int = 80) -> Served:
    """By twelve clients."""
    degrees = plan.layout.tp, plan.layout.pp
    steps: StepModel = table(*degrees)
    return serve(plan, program(*degrees), steps if leaps else SingleSteps(steps), load(num), 2048, CLIENTS)


@pytest.mark.parametrize("name", PLANS)
def test_as_many_are_under_way_as_there_are_clients_until_nothing_is_left(name: str) -> None:
    """All are served; a request comes exactly when another has ended, but for the first twelve."""
    found = records(served(PLANS[name]))
    assert len(found) == 80 and {each.reason for each in found} == {"length"}
    ends = sorted(each.end_s for each in found)
    came = sorted(each.request.arrival_s for each in found)
    assert came[:CLIENTS] == [0.0] * CLIENTS
    assert came[CLIENTS:] == ends[: len(ends) - CLIENTS]


@pytest.mark.parametrize("name", PLANS)
def test_a_leap_changes_nothing(name: str) -> None:
    """Steps taken one by one give every request the same times: no replica has leapt over what another's answer brought."""
    quick, slow = (
        {each.request.id: (each.first_token_s, each.end_s) for each in records(served(PLANS[name], leaps))}
        for leaps in (True, False)
    )
    assert quick.keys() == slow.keys()
    for name_of, times in quick.items():
        assert times == pytest.approx(slow[name_of], rel=1e-9)


def test_clients_of_prompts_apart_are_refused() -> None:
    """Two fleets are run one behind the other: nobody could wait for the second one."""
    with pytest.raises(PlanError, match="prompts apart"):
        served(replace(ONE, replicas=2, num_prefill=1))
