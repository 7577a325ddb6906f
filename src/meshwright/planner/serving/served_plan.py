"""ServedPlan: what a load did to one plan, what it costs, and which plans no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.planner.advice.running_cost import JOULES_PER_KWH, SECONDS_PER_HOUR
from meshwright.serving.fleet.fleet import Served
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.report import LatencyObjective, LoadReport
from meshwright.specs.cluster.device import DeviceSpec

MILLION = 1e6
LEAST_SHARE = 0.5  # of the best goodput
ENOUGH = 0.99  # of all requests, which are good where devices are enough


@dataclass(frozen=True)
class ServedPlan:
    """One plan under a load.

    Attributes:
        plan, report: how, and what came of it.
        num_blocks: of keys and values, that a replica has.
        device: of which all replicas are.
        simulate_s: CPU seconds of the loops, which wait for nothing.
    """

    plan: ServingPlan
    report: LoadReport
    num_blocks: int
    device: DeviceSpec
    simulate_s: float

    @classmethod
    def of(
        cls, plan: ServingPlan, served: Served, objective: LatencyObjective, device: DeviceSpec
    ) -> ServedPlan:
        """What came of a load, judged by its objective."""
        report = LoadReport.of(served.logs, objective)
        return cls(plan, report, served.num_blocks, device, served.simulate_s)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Of output tokens; all devices are paid for the whole time. None: nobody said what one costs."""
        return self._per_million(self.device.price_per_hour_usd, SECONDS_PER_HOUR)

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """Of output tokens; every device draws its power all the time. None: nobody said how much that is."""
        return self._per_million(self.device.power_w, JOULES_PER_KWH)

    def _per_million(self, rate: float | None, unit: float) -> float | None:
        tokens_per_s = self.report.output_tokens_per_s
        return (
            rate * self.plan.num_devices / unit / tokens_per_s * MILLION
            if rate is not None and tokens_per_s
            else None
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the plan, then figures in SI units; of nothing None."""
        report = self.report
        latencies = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
        return {
            "plan": {**self.plan.to_dict(), "name": self.plan.name},
            "num_requests": report.num_requests,
            "num_finished": report.num_finished,
            "num_refused": report.num_refused,
            "duration_s": report.duration_s,
            "output_tokens_per_s": report.output_tokens_per_s,
            "input_tokens_per_s": report.input_tokens_per_s,
            **{name: _known(getattr(report, name)) for name in latencies},
            "goodput_per_s": report.goodput_per_s,
            "good_share": report.good_share,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "kwh_per_million_tokens": self.kwh_per_million_tokens,
            "num_preemptions": report.num_preemptions,
            "num_cached_tokens": report.num_cached_tokens,
            "num_blocks": self.num_blocks,
            "simulate_s": self.simulate_s,
        }


def _known(figures: Any) -> dict[str, float | None]:
    return {name: value if value == value else None for name, value in figures.items()}


def answers(found: Sequence[ServedPlan]) -> list[ServedPlan]:
    """Without those that serve less than half of what another does: these are no answer to the same load."""
    best = max((each.report.goodput_per_s for each in found), default=0.0)
    return [each for each in found if each.report.goodput_per_s >= LEAST_SHARE * best]


def fewest_devices(found: Sequence[ServedPlan]) -> ServedPlan | None:
    """Of those that are enough, the one of the fewest devices, and of these the most goodput; None: none is."""
    enough = [each for each in found if each.report.good_share >= ENOUGH]
    return min(enough, key=lambda each: (each.plan.num_devices, -each.report.goodput_per_s), default=None)


def by_front(found: Sequence[ServedPlan]) -> list[ServedPlan]:
    """Those first that no other beats in goodput, devices and time per token, the most goodput first; then those that only
    they beat, and so on. What is no answer is left out."""
    left = answers(found)
    ordered: list[ServedPlan] = []
    while left:
        front = [each for each in left if not any(_beats(other, each) for other in left)]
        ordered += sorted(front, key=lambda each: tuple(-value for value in _merits(each)))
        left = [each for each in left if each not in front]
    return ordered


def _merits(each: ServedPlan) -> tuple[float, float, float]:
    """More is better; a hundredth of a request a second is none."""
    tpot_s = each.report.tpot_s["p50"]
    return (
        round(each.report.goodput_per_s, 2),
        -each.plan.num_devices,
        -tpot_s if tpot_s == tpot_s else float("-inf"),
    )


def _beats(one: ServedPlan, other: ServedPlan) -> bool:
    mine, its = _merits(one), _merits(other)
    return mine != its and all(a >= b for a, b in zip(mine, its, strict=True))
