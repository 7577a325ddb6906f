"""A load as a plan says it goes, beside what a server did with it: figures, ratios, and what they mean for the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.specs.error import SpecError

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
SHARES = ("p50", "p90", "p99")
RATES = ("output_tokens_per_s", "input_tokens_per_s", "goodput_per_s")
KEPT_UP = 0.95  # of the tokens a second that were asked for: a server that gives so many was not at its limit
ALIKE = 0.1  # ratios within so much of 1 are no news


class LoadFigure(NamedTuple):
    """One figure. Seconds, or a rate; None: there was none."""

    name: str
    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Measured / predicted."""
        if not self.predicted or self.measured is None:
            return None
        return self.measured / self.predicted


@dataclass(frozen=True)
class LoadComparison:
    """Of one plan and one server, under the same load.

    Attributes:
        plan: its name.
        replicas: that it has.
        figures: percentiles of latencies, and rates.
        usd_per_million_tokens: as the plan says; None: it has no price.
        num_failed: requests that the server did not answer.
    """

    plan: str
    replicas: int
    figures: tuple[LoadFigure, ...]
    usd_per_million_tokens: float | None = None
    num_failed: int = 0

    @classmethod
    def of(cls, predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> LoadComparison:
        """Of a layout of `plan --requests --json` (`ServedPlan.to_dict`) and the result of `bench serve --json`.

        Raises SpecError where they are of different loads.
        """
        if predicted["num_requests"] != measured["num_requests"]:
            raise SpecError(
                f"the plan is of {predicted['num_requests']} requests, the measurement of {measured['num_requests']}",
                allowed="the same load: equal --requests, --first, --rate-factor, --arrivals and --clients",
            )
        figures = [
            LoadFigure(f"{name} {share}", _known(predicted[name], share), _known(measured[name], share))
            for name in LATENCIES
            for share in SHARES
        ]
        figures += [LoadFigure(name, predicted[name], measured[name]) for name in RATES]
        plan = predicted["plan"]
        return cls(
            plan["name"], plan["replicas"], tuple(figures), predicted.get("usd_per_million_tokens"),
            measured["num_requests"] - measured["num_finished"],
        )  # fmt: skip

    def figure(self, name: str) -> LoadFigure:
        """By its name, such as "tpot_s p50"."""
        return next(each for each in self.figures if each.name == name)

    @property
    def step_factor(self) -> float | None:
        """How many times as long as predicted the server's steps take: by the median time per output token, which is a step
        as long as nobody has to wait for one."""
        return self.figure("tpot_s p50").ratio

    @property
    def has_kept_up(self) -> bool:
        """Did the server give nearly as many tokens a second as the plan? Then it was not asked for more."""
        ratio = self.figure("output_tokens_per_s").ratio
        return ratio is not None and ratio >= KEPT_UP

    @property
    def meaning(self) -> tuple[str, ...]:
        """What it means for the plan, in sentences."""
        found = []
        if self.num_failed:
            found.append(
                f"{self.num_failed} requests failed: they are in the percentiles, as ones that never came"
            )
        if (factor := self.step_factor) is not None:
            found.append(
                f"a token takes {factor:.2f} x as long as {self.plan} says"
                + (": as predicted" if abs(factor - 1) <= ALIKE else "")
            )
        first = self.figure("ttft_s p50").ratio
        if factor and first and first > factor * (1 + ALIKE):
            found.append(
                f"the first token takes {first:.2f} x as long, which is not the steps: prompts, queues, the way there"
            )
        if self.has_kept_up:
            found.append("the load was kept up with: how much more would be is not measured")
        else:
            found += self._short()
        return tuple(found)

    def _short(self) -> list[str]:
        """What a server that fell behind would need."""
        ratio = self.figure("output_tokens_per_s").ratio
        if not ratio:
            return ["it gave no tokens"]
        replicas = math.ceil(self.replicas / ratio)
        found = [
            f"it gave {ratio:.0%} of the tokens a second that the plan says: at this rate the plan's {self.replicas} "
            f"replica{'s' * (self.replicas != 1)} would have to be {replicas}"
        ]
        if self.usd_per_million_tokens is not None:
            usd = self.usd_per_million_tokens
            found.append(f"a million tokens would cost ${usd / ratio:.2f} in place of ${usd:.2f}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = [{**each._asdict(), "ratio": each.ratio} for each in self.figures]
        return {
            "plan": self.plan, "replicas": self.replicas, "step_factor": self.step_factor,
            "has_kept_up": self.has_kept_up, "figures": rows, "meaning": list(self.meaning),
        }  # fmt: skip


def _known(figures: Mapping[str, float | None], share: str) -> float | None:
    """A percentile; one that failed requests decide is none."""
    value = figures[share]
    return value if value is not None and math.isfinite(value) else None
