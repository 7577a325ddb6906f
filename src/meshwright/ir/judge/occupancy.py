"""How a step's time is used on one device, simulated or measured: computing, exchanging, exchanging exposed, idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Occupancy:
    """Seconds of one step on one device.

    Attributes:
        step_s: the step.
        compute_s: in which anything computes (what overlaps counts once).
        exchange_s: in which any exchange is under way.
        exposed_s: those of them in which nothing computes.
    """

    step_s: float
    compute_s: float
    exchange_s: float
    exposed_s: float

    @property
    def bubble(self) -> float:
        """Share of the step in which nothing computes."""
        return 1.0 - self.compute_s / self.step_s if self.step_s > 0 else 0.0


def occupancy(
    step_s: float, computes: tuple[ArrayLike, ArrayLike], exchanges: tuple[ArrayLike, ArrayLike]
) -> Occupancy:
    """Of starts and ends in seconds; they may overlap."""
    (c0, c1), (e0, e1) = (
        tuple(np.asarray(t, dtype=np.float64) for t in pair) for pair in (computes, exchanges)
    )
    compute_s = union_s(c0, c1)
    together_s = union_s(np.concatenate([c0, e0]), np.concatenate([c1, e1]))
    return Occupancy(step_s, compute_s, union_s(e0, e1), max(0.0, together_s - compute_s))


def union_s(start_s: Times, end_s: Times) -> float:
    """Seconds in which at least one of these intervals lasts."""
    if not len(start_s):
        return 0.0
    order = np.argsort(start_s, kind="stable")
    start, end = start_s[order], end_s[order]
    covered = np.maximum.accumulate(end)
    before = np.concatenate([[-np.inf], covered[:-1]])
    return float(np.maximum(0.0, end - np.maximum(start, before)).sum())


def occupancies(trace: Trace, step_s: float) -> list[Occupancy]:
    """Of every list of a trace in its last iteration."""
    program, start, end = trace.program, trace.start_s[-1], trace.end_s[-1]
    is_compute = program.kinds == Kind.COMPUTE
    is_exchange = np.isin(program.kinds, [int(kind) for kind in Kind if kind.is_exchange])
    found = []
    for device in range(program.num_lists):
        rows = slice(int(program.offsets[device]), int(program.offsets[device + 1]))
        c, e = (chosen[rows] for chosen in (is_compute, is_exchange))
        found.append(occupancy(step_s, (start[rows][c], end[rows][c]), (start[rows][e], end[rows][e])))
    return found
