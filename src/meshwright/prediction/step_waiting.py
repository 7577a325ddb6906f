"""step_waiting: what the busiest device of a plan's step waits for: other stages, or messages that nothing hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.ir.judge import metrics
from meshwright.ir.table import Kind
from meshwright.ir.timing.replay import replay
from meshwright.ir.trace import Trace
from meshwright.prediction.predicted import Predicted
from meshwright.prediction.step_part import (
    HOST_KINDS,
    INNER_ROWS,
    WAITING,
    busiest,
    idle_parts,
)
from meshwright.prediction.step_program import ITERATIONS


@dataclass(frozen=True, eq=False)
class StepWaiting:
    """A plan's step on virtual time, and what the device that computes longest waits for in it.

    Attributes:
        trace: the iterations that were replayed.
        bubble_s: seconds of a step that are left where messages take no time: other stages compute.
        exposed_s: seconds that messages and reductions add to that. Both sum to the "waiting" of the parts of `Predicted`.
    """

    trace: Trace
    bubble_s: float
    exposed_s: float


def step_waiting(predicted: Predicted) -> StepWaiting:
    """Replay a step of GPUs twice: as it is, and with messages between stages and reductions that take no time."""
    made, prices = predicted.made, predicted.prices
    program, factor = made.wiring.program, predicted.factor
    seconds, latency_s = factor * prices.seconds, factor * prices.latency_s
    device, busy_s = busiest(program, prices)
    inner = [each.name in INNER_ROWS for each in program.tables.effects]
    is_of_stage = (
        np.isin(program.kinds, (Kind.COMPUTE, *HOST_KINDS)) | np.array(inner)[program.columns.effect]
    )
    stays = np.zeros(len(seconds), dtype=bool)
    stays[prices.cost_of_row[is_of_stage]] = True

    def trace(is_kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Trace:
        times = replay(
            made.wiring, seconds * is_kept, latency_s * is_kept, prices.cost_of_row, iterations=ITERATIONS,
            host="asynchronous",
        )  # fmt: skip
        return Trace(program, *times, engine="max-plus")

    whole = trace(np.ones(len(seconds), dtype=bool))
    period_s, alone_s = metrics.period_s(whole), metrics.period_s(trace(stays))
    idle_s = max(0.0, period_s - factor * busy_s)
    waiting_s = idle_parts(whole, device, idle_s)[WAITING]
    exposed_s = min(waiting_s, max(0.0, period_s - alone_s))
    return StepWaiting(whole, waiting_s - exposed_s, exposed_s)
