"""FixedCosts: seconds by name of work, as textbooks count; messages that take latency and occupy nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.costs.cost import Cost, Flow
from meshwright.ir.table import Exchange, Work
from meshwright.specs.error import SpecError


@dataclass(frozen=True)
class FixedCosts:
    """Seconds of a full stage by name; a chunk costs its share (`Work.share`, 1/V).

    Attributes:
        seconds: name -> seconds of a full stage; a name that is not here costs nothing.
        latency_s: of a message between different devices; it holds neither stream nor link.
        exchange: what an exchange costs instead (a message names its `ends`); None: the latency of messages, reductions free.
    """

    seconds: Mapping[str, float]
    latency_s: float = 0.0
    exchange: Callable[[Exchange], Cost] | None = None

    def __post_init__(self) -> None:
        for name, value in [*self.seconds.items(), ("latency", self.latency_s)]:
            if not 0 <= value < float("inf"):
                raise SpecError(f"the time of {name} is {value}", allowed="a finite number of at least 0")

    @classmethod
    def from_times(
        cls, forward_s: float, input_s: float, weight_s: float, latency_s: float = 0.0
    ) -> FixedCosts:
        """From F, I and W of a full stage: B = I + W where unsplit, R (recompute) = F, STEP and reductions free."""
        seconds = {"F": forward_s, "I": input_s, "W": weight_s, "B": input_s + weight_s, "R": forward_s}
        return cls(seconds, latency_s)

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Seconds of the work's name times its share of a stage."""
        return Cost(self.seconds.get(work.name, 0.0) * work.share)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """As `exchange` has it; else latency only, and none within a device or for a reduction."""
        if self.exchange is not None:
            return self.exchange(exchange)
        crosses = len(set(devices)) > 1 and len(devices) == 2
        return Cost(0.0, self.latency_s if crosses else 0.0, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """Nothing: these messages share no link."""
        return ()
