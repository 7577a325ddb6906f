"""OwnStack: what a profile of one's own runs says of every plan on such devices, in one place for all verbs."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from meshwright.prediction.own_runs.finding import factor_lines
from meshwright.prediction.own_runs.posterior import Posterior
from meshwright.prediction.own_runs.prior import packaged_priors
from meshwright.prediction.own_runs.run_table import RunTable
from meshwright.prediction.own_runs.trait import run_traits
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.own_run import OwnRun
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import SpecError
from meshwright.specs.units import counted

STEP_FACTOR = "step_factor"  # of an older profile: seconds of a measured step / seconds of the predicted one


@dataclass(frozen=True, eq=False)
class OwnStack:
    """How steps of such devices differ from what is predicted of them.

    Attributes:
        posterior: what runs say; None where there are none.
        factor: of an older profile, for all steps.
        said: what it rests on, for people; empty where nothing is known.
    """

    posterior: Posterior | None = None
    factor: float = 1.0
    said: str = ""

    @staticmethod
    def of(given: Profile | str | os.PathLike[str] | None, cluster: ClusterSpec) -> OwnStack:
        """What a profile or its file says of a cluster: nothing without one, and of processes of this machine, whose profiles
        hold kernels instead.

        Raises SpecError where it is of another device, or was made from no run.
        """
        if given is None or cluster.machine.is_here:
            return OwnStack()
        profile = given if isinstance(given, Profile) else Profile.load(Path(given))
        device = cluster.devices[0].name
        if not profile.runs and STEP_FACTOR not in profile.constants:
            raise SpecError(
                f"the profile of {profile.device} has no runs and no {STEP_FACTOR}",
                allowed="a profile that `calibrate --from-log` wrote",
                next="run `meshwright calibrate --from-log LOG --plan PLAN -o my.profile.json`",
            )
        if profile.device != device:
            raise SpecError(
                f"the profile is of {profile.device}, the plan's cluster has {device}",
                allowed=f"a profile of {device}",
            )
        if not profile.runs:
            factor = profile.constants[STEP_FACTOR]
            said = f"all times are {factor:.3f} x the prediction, as of your log: {profile.source}"
            return OwnStack(None, factor, said)
        posterior = Posterior.of(profile.runs, packaged_priors().fit)
        num_runs = counted(len(profile.runs), "run")
        said = f"corrected by {num_runs} of your own: {', '.join(factor_lines(posterior))} ({profile.source})"
        return OwnStack(posterior, said=said)

    def of_plan(self, each: Predicted) -> Predicted:
        """A plan as such a stack runs it, with the interval that the runs leave; the same without runs."""
        if self.posterior is None:
            return each.of_measured_steps(self.factor, self.said) if self.said else each
        seconds = each.step.value
        alone = OwnRun(each.description, seconds, seconds, each.parts, run_traits(each.plan, each.cluster))
        (mean,), (spread,) = self.posterior.predict(RunTable.of([alone]))
        width = self.posterior.prior.quantile * float(spread)
        return each.of_measured_steps(math.exp(mean), self.said, (math.exp(-width), math.exp(width)))
