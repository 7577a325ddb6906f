"""Costs with a given time for every collective: computes by name, exchanges that hold their stream for so long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.costs.cost import Cost, Flow
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.table import Exchange, Work


@dataclass(frozen=True)
class ExchangeSeconds:
    """Computes cost what `computes` says; every exchange takes `seconds` and shares no link."""

    computes: FixedCosts
    seconds: float

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Seconds of a compute by its name."""
        return self.computes.cost(work, device)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """The given seconds, whatever the size."""
        return Cost(self.seconds, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """None: these exchanges share no link."""
        return ()
