"""Runs a probe on virtual time with seconds by name; its trace has the memory curves."""

from __future__ import annotations

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.simulator.ledger import memory_curves


def trace_of(
    program: Program, seconds: dict[str, float], iterations: int = 1, host: str = "asynchronous"
) -> Trace:
    """Replay with these seconds by name, the rest free."""
    by_effect = np.array([seconds.get(effect.name, 0.0) for effect in program.tables.effects])
    wiring = wire(program)
    classes = program.columns.effect.astype(np.int32)
    posted, start, end = replay(wiring, by_effect, 0 * by_effect, classes, iterations=iterations, host=host)
    return Trace(program, posted, start, end, "max-plus", memory_curves(wiring, posted, end))


def starts_of(trace: Trace, name: str, device: int = 0, iteration: int = -1) -> list[float]:
    """Starts of the rows of a name on a device, in list order."""
    rows = [view.row for view in trace.program.instructions(device) if view.name == name]
    return trace.start_s[iteration][rows].tolist()
