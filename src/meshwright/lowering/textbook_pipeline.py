"""A pipeline as papers draw it: a registered schedule whose stages are equal, with messages and nothing else."""

from __future__ import annotations

from meshwright.ir.program import Program
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered


def textbook_pipeline(schedule: str, num_devices: int, num_microbatches: int, num_chunks: int = 1) -> Program:
    """One step, to be priced by `FixedCosts`: every compute is its share of a device's stage. Raises ScheduleError."""
    orders = registered()[schedule].orders(num_devices, num_microbatches, num_chunks)
    return with_shares(Transfers()(program_of_orders(orders)), num_chunks)
