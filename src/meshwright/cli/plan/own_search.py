"""Beside the plans of another planner the best of our own search, for the same job and with the same limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright import api
from meshwright.api.plans.planning import OWN_PLANNER
from meshwright.cli.plan.view import plan_data
from meshwright.planner.search.plans import Plans
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import MeshwrightError
from meshwright.specs.model.model import ModelSpec

LEAST_GAIN = 0.0005  # of a step; what is told with one digit of a per cent


@dataclass(frozen=True)
class OwnSearch:
    """The best plan of our search, or why it has none."""

    best: Predicted | None
    reason: str = ""

    def data(self) -> dict[str, Any]:
        """For --json."""
        return {"own_search": plan_data(self.best) if self.best else None}

    def line(self, found: Plans) -> str:
        """By what the first of the planner's plans is behind ours, or ahead of it."""
        if self.best is None:
            return f"our own search has no plan: {self.reason}"
        gain = found[0].step.value / self.best.step.value - 1
        if abs(gain) < LEAST_GAIN:
            return "ours, the best of our own search, is as fast as 1"
        if gain > 0:
            return f"ours, the best of our own search, is {100 * gain:.1f} % faster than 1"
        return f"1 is {100 * (1 / (1 + gain) - 1):.1f} % faster than ours, the best of our own search"


def own_search(
    model: str | ModelSpec, cluster: str | ClusterSpec, job: Mapping[str, Any]
) -> OwnSearch | None:
    """What our search finds for a job that another planner was asked for; None where none was."""
    if job.get("planner") in (None, OWN_PLANNER):
        return None
    own = {name: value for name, value in job.items() if name != "planner"}
    try:
        return OwnSearch(api.plan(model, cluster, **own)[0])
    except MeshwrightError as error:
        return OwnSearch(None, str(error))
