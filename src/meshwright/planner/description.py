"""Plans in words: what was decided, and what it is predicted to do, each in one line."""

from __future__ import annotations

from typing import Protocol

from meshwright.specs.plan import Plan
from meshwright.specs.prediction import Prediction
from meshwright.specs.units import format_bytes, format_seconds


def describe(plan: Plan) -> str:
    """A plan in a few words: degrees, schedule, microbatch, what is recomputed and split."""
    degrees = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep}
    words = [
        f"pp={plan.pp} dp={plan.dp}",
        *(f"{axis}={degree}" for axis, degree in degrees.items() if degree > 1),
        plan.sharding if plan.sharding != "none" else "",
        plan.schedule if plan.pp > 1 else "",
        f"microbatch {plan.microbatch_size}",
    ]
    recomputes = {"none": [], "full": ["recompute"]}
    words += recomputes.get(plan.recompute, [f"recompute {plan.recompute}"])
    words += ["split backward"] if plan.split_backward else []
    return " ".join(word for word in words if word)


class Tried(Protocol):
    """A plan that was predicted, whichever way it was found."""

    @property
    def description(self) -> str: ...
    @property
    def step(self) -> Prediction: ...
    @property
    def tokens_per_s(self) -> float: ...
    @property
    def bubble(self) -> float: ...
    @property
    def peak_bytes(self) -> float: ...


def sentence(tried: Tried) -> str:
    """A plan and what it is predicted to do, in one line."""
    low, high = format_seconds(tried.step.low), format_seconds(tried.step.high)
    return (
        f"{tried.description}: step {format_seconds(tried.step.value)} ({low} to {high}, {tried.step.basis}), "
        f"{tried.tokens_per_s:,.0f} tokens/s, bubble {tried.bubble:.1%}, peak {format_bytes(tried.peak_bytes)}"
    )
