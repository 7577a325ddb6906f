"""Plans whose times are as a log of the user's own was measured: what `calibrate --from-log` wrote, applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.evidence.log_comparison import profile_factor
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile

if TYPE_CHECKING:
    from meshwright.planner.search.plans import Plans
    from meshwright.planner.search.solve import Solution
    from meshwright.prediction.predicted import Predicted


class MeasuredSteps:
    """By how much the steps of one device's runs were longer than predicted; nothing without a profile, and on processes of
    this machine, whose profiles hold kernels instead.

    Raises SpecError where the profile is of another device, or was made from no log.
    """

    def __init__(self, profile: Profile | Path | None, cluster: ClusterSpec) -> None:
        found = Profile.load(profile) if isinstance(profile, Path) else profile
        self.factor, self.said = 1.0, ""
        if found is not None and not cluster.machine.is_here:
            self.factor = profile_factor(found, cluster.devices[0].name)
            self.said = f"all times are {self.factor:.3f} x the prediction, as of your log: {found.source}"

    def of_plan(self, each: Predicted) -> Predicted:
        """One plan with its measured times."""
        return each.of_measured_steps(self.factor, self.said) if self.said else each

    def of_plans(self, found: Plans) -> Plans:
        """All plans of a search, in their order, which one factor does not change."""
        if not self.said:
            return found
        over = tuple(each._replace(plan=self.of_plan(each.plan)) for each in found.passed_over)
        return replace(found, plans=tuple(map(self.of_plan, found)), passed_over=over)

    def of_solution(self, found: Solution) -> Solution:
        """The plans behind a number that was solved for by what fits."""
        return replace(found, found=self.of_plans(found.found))
