"""Virtual time: prices, the engine without contention and its certificate, the event engine, and the memory ledger."""

from meshwright.simulator.certificate import is_uncontended
from meshwright.simulator.event.engine import run_events
from meshwright.simulator.ledger import memory_curves
from meshwright.simulator.pricing import Prices, price
from meshwright.simulator.simulate import run, simulate_priced, simulate_program

__all__ = [
    "Prices",
    "is_uncontended",
    "memory_curves",
    "price",
    "run",
    "run_events",
    "simulate_priced",
    "simulate_program",
]
