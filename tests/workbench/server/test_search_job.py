"""Documents of searches: what stands beside the plans."""

from __future__ import annotations

from dataclasses import replace

from tests.workbench.server.client import STATE

from meshwright import api
from meshwright.planner.search.plans import PassedOver
from meshwright.workbench.document.document import PlansSection
from meshwright.workbench.server.search_job import plans_document
from meshwright.workbench.server.session import Session
from meshwright.workbench.server.state import asked_of


def test_a_faster_plan_that_was_passed_over_is_told_above_the_plans_without_options_of_the_command_line() -> (
    None
):
    session = Session()
    asked = asked_of(STATE, session)
    found = api.plan(asked.model, asked.cluster, global_batch=16, seq=1024, fix={"tp": 2, "pp": 2})
    risky = PassedOver(found[0], "it fits with a chance of 38 % only; --risk 0.62 accepts it")
    (plans, _) = plans_document(replace(found, passed_over=(risky,)), asked, session).sections
    assert isinstance(plans, PlansSection)
    assert plans.note == f"0.0 % faster is {found[0].description}: it fits with a chance of 38 % only."
    (alone, _) = plans_document(replace(found, passed_over=()), asked, session).sections
    assert isinstance(alone, PlansSection) and alone.note == ""
