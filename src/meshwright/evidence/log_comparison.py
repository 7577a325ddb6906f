"""A predicted step beside the steps of a log: ratio, interval, what a difference may be, what calibration would move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.interop.training_log import MeasuredRun
from meshwright.specs.error import SpecError
from meshwright.specs.plan import Plan
from meshwright.specs.prediction import Prediction
from meshwright.specs.profile import Profile

STEP_FACTOR = "step_factor"  # of a profile: seconds of a measured step / seconds of the predicted one
NUM_PARTS_TOLD = 5
# What a constant of `costs.step_costs.StepConstants` is about, by words in the name of a part of the step.
CONSTANTS: Mapping[str, str] = {
    "matmul": "matmul: seconds of a matrix product in a step / alone",
    "attention": "attention: seconds of attention in a step / alone",
    "stream": "stream: seconds of norms, activations and sums in a step / alone",
    "node": "node_exchange: seconds of an exchange inside a node, in a step / alone",
    "network": "network_exchange: seconds of an exchange between nodes, in a step / alone",
    "host": "host_s: seconds the host takes to launch a kernel",
    "expert": "expert_s: seconds the host waits for the counts of a layer of experts",
    "step": "step_s: seconds of a step that no kernel and no message takes",
}


@dataclass(frozen=True)
class Part:
    """One part of a predicted step: `needed` is how many times as long it would have to take to explain the
    whole difference by itself; None where no time of its own would do."""

    name: str
    seconds: float
    needed: float | None


@dataclass(frozen=True)
class LogComparison:
    """A plan's predicted step beside the measured ones.

    Attributes:
        predicted: seconds of a step with interval and basis; `factor` of a profile is in it.
        run: what the log says.
        parts: parts of the prediction, the largest first.
        factor: by which a profile scaled the prediction (1: none).
        software: the efficiency class of the plan.
    """

    predicted: Prediction
    run: MeasuredRun
    parts: tuple[Part, ...]
    factor: float = 1.0
    software: str = ""

    @property
    def ratio(self) -> float:
        """Measured median / predicted."""
        return self.run.median_s / self.predicted.value

    @property
    def is_inside(self) -> bool:
        """Is the measured median inside the interval of the prediction?"""
        return self.predicted.contains(self.run.median_s)

    @property
    def movable(self) -> tuple[str, ...]:
        """The constants that a calibration would move, those of the largest parts first; the factor it writes last."""
        found = [text for part in self.parts for word, text in CONSTANTS.items() if word in part.name.lower()]
        whole = f"{STEP_FACTOR}: `calibrate --from-log` writes this one, {self.factor * self.ratio:.3f}, for all of a step"
        return (*dict.fromkeys(found), whole)

    def differences(self) -> tuple[str, ...]:
        """What the difference may be, the likeliest first: a large part that need not be far off comes before others."""
        lines = []
        for part in self.parts[:NUM_PARTS_TOLD]:
            share = part.seconds / self.predicted.value
            told = (
                "cannot explain it alone"
                if part.needed is None
                else f"explains it if it takes {part.needed:.2f}x as long"
            )
            lines.append(f"{part.name}: {share:.0%} of the predicted step; {told}")
        return tuple(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units, for --json."""
        return {
            "predicted_s": self.predicted.value,
            "low_s": self.predicted.low,
            "high_s": self.predicted.high,
            "basis": self.predicted.basis,
            "measured": self.run.to_dict(),
            "ratio": self.ratio,
            "is_inside": self.is_inside,
            "profile_factor": self.factor,
            "parts": [
                {"name": part.name, "seconds": part.seconds, "needed": part.needed} for part in self.parts
            ],
            "differences": list(self.differences()),
            "movable_constants": list(self.movable),
        }


def compare_log(
    predicted: Prediction,
    parts: Mapping[str, float],
    run: MeasuredRun,
    *,
    factor: float = 1.0,
    software: str = "",
) -> LogComparison:
    """The comparison.

    Args:
        predicted: a step as `predict_step` gives it.
        parts: its seconds by kind.
        run: what was measured.
        factor: of a profile (`step_factor`); it scales the prediction and its parts.
        software: the plan's efficiency class.
    """
    scaled = predicted.scaled(factor)
    difference = run.median_s - scaled.value
    found = []
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        own = seconds * factor
        if own > 0:
            found.append(Part(name, own, (own + difference) / own if own + difference > 0 else None))
    return LogComparison(scaled, run, tuple(found), factor, software)


def step_profile(comparison: LogComparison, plan: Plan, device: str, source: str) -> Profile:
    """A user's profile of one number: measured over predicted, of this plan's software on this device."""
    low, high = comparison.run.quartiles_s
    return Profile(
        device=device,
        dtype=plan.dtype,
        num_processes=plan.num_devices,
        constants={STEP_FACTOR: comparison.factor * comparison.ratio},
        source=(
            f"{source}: median step {comparison.run.median_s:.6g} s (quartiles {low:.6g} to {high:.6g}), predicted "
            f"{comparison.predicted.value / comparison.factor:.6g} s for {plan.model.name} on {plan.num_devices} devices, "
            f"software class {plan.software or 'default'}"
        ),
    )


def profile_factor(profile: Profile | None, device: str) -> float:
    """The factor of a profile; 1 without one. Raises SpecError where it is of another device, or has no factor."""
    if profile is None:
        return 1.0
    if STEP_FACTOR not in profile.constants:
        raise SpecError(
            f"the profile of {profile.device} has no {STEP_FACTOR}",
            allowed="a profile that `calibrate --from-log` wrote",
            next="run `meshwright calibrate --from-log LOG --plan PLAN -o my.profile.json`",
        )
    if profile.device != device:
        raise SpecError(
            f"the profile is of {profile.device}, the plan's cluster has {device}",
            allowed=f"a profile of {device}",
        )
    return profile.constants[STEP_FACTOR]
