"""Plans whose times are as runs of the user's own were measured: what `calibrate --from-log` wrote, applied to a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.prediction.own_runs.own_stack import OwnStack
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile

if TYPE_CHECKING:
    from meshwright.planner.search.plans import Plans
    from meshwright.planner.search.solve import Solution
    from meshwright.prediction.predicted import Predicted


class MeasuredSteps:
    """How steps of one device's runs differ from what is predicted; nothing without a profile, and on processes of this
    machine, whose profiles hold kernels instead.

    Raises SpecError where the profile is of another device, or was made from no run.
    """

    def __init__(self, profile: Profile | Path | None, cluster: ClusterSpec) -> None:
        self.stack = OwnStack.of(profile, cluster)

    @property
    def said(self) -> str:
        """What it rests on, for people; empty where nothing is known."""
        return self.stack.said

    def of_plan(self, each: Predicted) -> Predicted:
        """One plan with its measured times."""
        return self.stack.of_plan(each)

    def of_plans(self, found: Plans) -> Plans:
        """All plans of a search, in their order."""
        if not self.said:
            return found
        over = tuple(each._replace(plan=self.of_plan(each.plan)) for each in found.passed_over)
        return replace(found, plans=tuple(map(self.of_plan, found)), passed_over=over)

    def ranked(self, found: Plans, capacity_bytes: int, risk: float) -> Plans:
        """The same where runs may say another order: the fastest first, of those that fit as surely. What the search proved
        of others rests on their times as predicted, so that no gap is told."""
        from meshwright.planner.search.plans import safe_first

        measured = self.of_plans(found)
        if self.stack.posterior is None:
            return measured
        plans = safe_first(sorted(measured, key=lambda each: each.step.value), capacity_bytes, risk)
        over = (each for each in measured.passed_over if each.plan.step.value < plans[0].step.value)
        return replace(measured, plans=tuple(plans), passed_over=tuple(over), optimality_gap=None)

    def frontier(self, found: Plans) -> Plans:
        """Those of a frontier that no other equals or beats in both step and peak as measured."""
        measured, least, kept = self.of_plans(found), float("inf"), []
        for each in sorted(measured, key=lambda each: (each.step.value, each.peak_bytes)):
            if each.peak_bytes < least:
                least = each.peak_bytes
                kept.append(each)
        return replace(measured, plans=tuple(kept)) if self.said else measured

    def of_solution(self, found: Solution) -> Solution:
        """The plans behind a number that was solved for by what fits."""
        return replace(found, found=self.of_plans(found.found))
