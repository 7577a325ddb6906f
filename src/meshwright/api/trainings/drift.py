"""Predicted against measured while a training runs: a warning that names the instruction when they drift apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshwright.ir.judge.metrics import busy_s
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace

if TYPE_CHECKING:
    from meshwright.executor.job.gather import Iteration
    from meshwright.ir.program import Program

WINDOW = 20  # steps whose median is compared
# Medians of a quiet machine stay within 15 % of the prediction; beyond this factor the prediction is of another machine.
FACTOR = 1.5
WORSE = 1.5  # told again where the step takes this many times what it took when it was told
EXPLAINS = (
    0.5  # share of the excess from which on computes are its cause; behind a slow compute others only wait
)
DIGITS_MS = 1e3


@dataclass(frozen=True)
class Drift:
    """A median step that takes longer than predicted, and the name with the largest share of the excess.

    ``rank``: where. ``is_waiting``: the host waits for it; otherwise it is a compute that takes longer.
    """

    step: int
    name: str
    rank: int
    is_waiting: bool
    step_s: float
    predicted_step_s: float
    name_s: float
    predicted_name_s: float

    def __str__(self) -> str:
        what = f"waiting for {self.name}" if self.is_waiting else self.name
        return (
            f"steps take {_ms(self.step_s)}, predicted were {_ms(self.predicted_step_s)}: most of it is {what} on rank "
            f"{self.rank}, {_ms(self.name_s)} a step instead of {_ms(self.predicted_name_s)}"
        )


def _ms(seconds: float) -> str:
    return f"{DIGITS_MS * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


class DriftWatch:
    """Sees every iteration and says once when a window of them has drifted, and again when it got much worse."""

    def __init__(self, predicted: Trace, step_s: float, program: Program) -> None:
        """`program`: of the job; its lists are ranks, and the prediction's may stand for several of them."""
        self.step_s = step_s
        self._computes = _computes_by_list(predicted)
        self._busy = busy_s(predicted).tolist()
        self._list_of_rank = [_list_of(predicted.program, program, rank) for rank in range(program.num_lists)]
        self._seen: deque[Iteration] = deque(maxlen=WINDOW)
        self._told_s = FACTOR * step_s / WORSE

    def see(self, iteration: Iteration) -> Drift | None:
        """One more iteration; the first holds the start of the job and does not count."""
        if iteration.number > 0:
            self._seen.append(iteration)
        if len(self._seen) < WINDOW:
            return None
        step_s = float(np.median([one.seconds for one in self._seen]))
        if step_s <= WORSE * self._told_s:
            return None
        found = self._cause(iteration.number, step_s)
        if found is not None:
            self._told_s = step_s
        return found

    def _cause(self, number: int, step_s: float) -> Drift | None:
        """The name with the largest excess: of a compute where computes of one rank are the cause, else of a wait."""
        ranks = [rank for rank in self._seen[-1].computes if rank < len(self._list_of_rank)]
        if not ranks:
            return None
        computes = {rank: self._medians(rank, is_waiting=False) for rank in ranks}
        excess = {
            rank: {
                name: s - self._computes[self._list_of_rank[rank]].get(name, 0.0) for name, s in found.items()
            }
            for rank, found in computes.items()
        }
        worst = max(ranks, key=lambda rank: sum(excess[rank].values()))
        if excess[worst] and sum(excess[worst].values()) >= EXPLAINS * (step_s - self.step_s):
            name = max(excess[worst], key=lambda one: excess[worst][one])
            predicted = self._computes[self._list_of_rank[worst]].get(name, 0.0)
            return Drift(number, name, worst, False, step_s, self.step_s, computes[worst][name], predicted)
        waits = {rank: self._medians(rank, is_waiting=True) for rank in ranks}
        idle = {rank: max(0.0, self.step_s - self._busy[self._list_of_rank[rank]]) for rank in ranks}
        worst = max(ranks, key=lambda rank: sum(waits[rank].values()) - idle[rank])
        if not waits[worst]:
            return None
        name = max(waits[worst], key=lambda one: waits[worst][one])
        return Drift(number, name, worst, True, step_s, self.step_s, waits[worst][name], idle[worst])

    def _medians(self, rank: int, is_waiting: bool) -> dict[str, float]:
        """Median seconds of a step, by name, over the window."""
        rows = [(one.waits if is_waiting else one.computes).get(rank, {}) for one in self._seen]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: float(np.median([row.get(name, 0.0) for row in rows])) for name in names}


def _computes_by_list(trace: Trace) -> list[Mapping[str, float]]:
    """For every list of the prediction the seconds of its computes, by name."""
    program = trace.program
    length = trace.end_s[-1] - trace.start_s[-1]
    found: list[Mapping[str, float]] = []
    for one in range(program.num_lists):
        rows = np.arange(program.offsets[one], program.offsets[one + 1])
        rows = rows[program.kinds[rows] == Kind.COMPUTE]
        sums: dict[str, float] = {}
        for row in rows.tolist():
            name = program.tables.effects[program.columns.effect[row]].name
            sums[name] = sums.get(name, 0.0) + float(length[row])
        found.append(sums)
    return found


def _list_of(predicted: Program, program: Program, rank: int) -> int:
    """The list of the prediction that stands for a rank: its coordinates along the axes that are stored there."""
    coordinates, place = program.coordinates(rank), 0
    for axis in predicted.list_axes:
        place = place * axis.size + coordinates[axis.name]
    return place
