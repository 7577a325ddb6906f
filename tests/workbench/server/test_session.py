"""What a session keeps, and for how long."""

from __future__ import annotations

import pytest
from tests.workbench.server.test_app import OURS

from meshwright import Cluster, Model, Workload
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.server import session
from meshwright.workbench.server.session import KeptText, Session


def test_plans_that_are_found_do_not_displace_the_text_of_what_was_pasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "MOST_KEPT", 2)
    cluster, kept = Cluster("8xH100"), Session()
    name = kept.keep_cluster(cluster, OURS)
    plans = [
        kept.keep_plan(Plan.of(Model("gpt2"), cluster, Workload(8 * batch, 1024))) for batch in (1, 2, 3)
    ]
    assert kept.source(name) == KeptText("cluster", OURS)
    assert kept.source(plans[0]) is None and kept.source(plans[2]) is not None
