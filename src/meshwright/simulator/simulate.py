"""`simulate_program`: a program on virtual time. Without contention by replay; where the certificate fails, by events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.costs.cost import CommunicationModel, CostModel
from meshwright.ir.program import Program
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import Wiring, wire
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.lowering.place import Placement
from meshwright.simulator.certificate import is_uncontended
from meshwright.simulator.event.engine import run_events
from meshwright.simulator.ledger import ended, memory_curves
from meshwright.simulator.pricing import Prices, price

LEDGER_ROWS = 2_000_000  # above it the curve of every device is more than anybody looks at; `verify` still bounds the peak


def simulate_program(
    program: Program | Wiring,
    computes: CostModel,
    messages: CommunicationModel,
    *,
    placement: Placement | None = None,
    iterations: int = 1,
    host: str = "asynchronous",
    metadata: Mapping[str, Any] | None = None,
) -> Trace:
    """Run a program on virtual time.

    Args:
        program: the program, or its wiring where it was compiled before (`verify` returns it).
        computes, messages: what works and exchanges cost.
        placement: which devices its lists stand on; None: all alike, every hop the same.
        host: ``asynchronous`` or ``in_order``.

    Returns:
        A trace whose engine is ``max-plus`` where no device and no link was over-subscribed, otherwise ``event``.

    Raises:
        ProgramError, DeadlockError: the program is not legal.
    """
    wiring = program if isinstance(program, Wiring) else wire(program)
    prices = price(wiring, computes, messages, placement)
    return simulate_priced(wiring, prices, iterations=iterations, host=host, metadata=metadata)


def simulate_priced(
    wiring: Wiring,
    prices: Prices,
    *,
    iterations: int = 1,
    host: str = "asynchronous",
    metadata: Mapping[str, Any] | None = None,
) -> Trace:
    """`simulate_program` for who has the prices already."""
    engine, (posted, start, end) = run(wiring, prices, iterations=iterations, host=host)
    curves: tuple[MemoryCurve, ...] = ()
    if wiring.program.num_rows <= LEDGER_ROWS:
        free = ended(wiring, end, prices.latency_s[prices.cost_of_row])
        curves = memory_curves(wiring, posted, free)
    return Trace(wiring.program, posted, start, end, engine, curves, dict(metadata or {}))


def run(
    wiring: Wiring, prices: Prices, *, iterations: int = 1, host: str = "asynchronous"
) -> tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(name of the engine, (posted, start, end)): replay, and events only where its result over-subscribes something."""
    times = replay(
        wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=iterations, host=host
    )
    if is_uncontended(wiring, prices, times[1], times[2]):
        return "max-plus", times
    return "event", run_events(wiring, prices, iterations=iterations, host=host)
