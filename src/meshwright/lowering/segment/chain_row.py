"""ChainRow: one row of a stage as a chain, before it is one of a program."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.ir.table import Effect, Exchange


class ChainRow(NamedTuple):
    """One row of a chain: the segment behind which it stands, what it touches, and, of an exchange, along what it runs.
    ``part``: the step, of a relay."""

    segment: int
    effect: Effect
    exchange: Exchange | None = None
    part: int = 0
    lane: str = ""  # before its axes, in the name of its stream

    @property
    def stream(self) -> str:
        """Exchanges among the same devices are one order; messages have one for each lane."""
        return "compute" if self.exchange is None else self.lane + "_".join(self.exchange.axes)
